"""Device memory of the decode kernels: weights, state and scratch."""

from __future__ import annotations

import torch
from torch import Tensor

from scanline.kernels.cuda.decode_config import DecodeConfig
from scanline.kernels.cuda.matmul import BM
from scanline.kernels.cuda.state import OUTSIDE
from scanline.kernels.short_conv import TAPS


def allocate_weights(config: DecodeConfig, device: torch.device | str) -> dict[str, Tensor]:
    """Allocate the weights of a network, uninitialised.

    Matrices are ``[out, in]`` in ``DecodeConfig.dtype_of``; all other weights are float32. The
    weights of a layer have names such as ``0.qkv.weight``; q, k and v are one matrix.
    """
    D = config.d_model
    products = {"head": (config.outputs, D)}
    vectors = {"norm.weight": D, "norm.bias": D}
    for layer in range(config.layers):
        products |= {
            f"{layer}.qkv": (3 * D, D), f"{layer}.out": (D, D),
            f"{layer}.linear1": (config.d_ff, D), f"{layer}.linear2": (D, config.d_ff),
        }  # fmt: skip
        vectors |= {f"{layer}.{norm}": D for norm in (
            "norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias",
        )}  # fmt: skip
    convolutions = [f"{layer}.conv{half}" for layer in range(config.layers) for half in (1, 2)]
    shapes = {
        "value_table": (config.context, OUTSIDE + 1, config.embedding_size),
        "step_table": (config.steps, D), "context_index": (config.steps, config.context),
        "label_table": (config.classes + 1, D),
        **{f"{name}.weight": (TAPS, D) for name in convolutions if config.short_conv},
    }  # fmt: skip
    weights = {
        name: torch.empty(
            shape, device=device, dtype=torch.int32 if name == "context_index" else torch.float32
        )
        for name, shape in shapes.items()
    }
    for name, size in vectors.items():
        weights[name] = torch.empty(size, device=device)
    for name, matrix in products.items():
        weights[f"{name}.weight"] = torch.empty(matrix, device=device, dtype=config.dtype_of(name))
        weights[f"{name}.bias"] = torch.empty(matrix[0], device=device)
    return weights


def allocate_buffers(
    config: DecodeConfig, slots: int, device: torch.device | str
) -> dict[str, Tensor]:
    """Allocate the buffers of ``slots`` images: inputs, state, and scratch of a step."""
    N, T, D, H, K = slots, config.pixels, config.d_model, config.heads, config.head_size
    shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
        "positions": (torch.int32, (N,)),
        "canvas": (torch.uint8, (N, T, config.steps_per_pixel * config.channels)),
        "bits": (torch.float32, (N, T)),
        "known": (torch.uint8, (N, T)),
        "seed": (torch.int64, (N,)),
        "particle": (torch.int64, (N,)),
        "temperature": (torch.float32, (N,)),
        "top_p": (torch.float32, (N,)),
        "guidance": (torch.float32, (N,)),
        "label": (torch.int32, (N,)),
        "twin": (torch.int32, (N,)),
        "kv": (torch.float32, (config.layers, N, H, K, K)),
        "z": (torch.float32, (config.layers, N, H, K)),
        "pending": (config.dtype, (config.layers, N, H, config.write_interval - 1, 2, K)),
        "ring": (torch.float32, (2 * config.layers, N, config.ring, D)),
    }
    state = {
        name: torch.empty(shape, dtype=dtype, device=device)
        for name, (dtype, shape) in shapes.items()
    }
    return state | allocate_scratch(config, slots, device)


def allocate_scratch(
    config: DecodeConfig, rows: int, device: torch.device | str
) -> dict[str, Tensor]:
    """Allocate what one step of ``rows`` rows writes and reads, in whole tiles of rows."""
    R, D = -(-rows // BM) * BM, config.d_model
    shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
        "slots": (torch.int32, (R,)),
        "x0": (torch.float32, (R, D)),
        "x1": (torch.float32, (R, D)),
        "statistics0": (torch.float32, (R, config.tiles, 2)),
        "statistics1": (torch.float32, (R, config.tiles, 2)),
        "convolved": (torch.float32, (R if config.short_conv else 0, D)),
        # In bf16 these buffers cost mnist and cifar10 at most 0.00001 bits/dim. A bf16 residual
        # stream would cost cifar10 0.010 bits/dim, and a bf16 convolution output 0.003.
        "qkv": (config.dtype, (R, 3 * D)),
        "o": (config.dtype, (R, D)),
        "hidden": (config.dtype, (R, config.d_ff)),
        "parameters": (torch.float32, (R, config.outputs)),
    }
    return {
        name: torch.empty(shape, dtype=dtype, device=device)
        for name, (dtype, shape) in shapes.items()
    }
