"""What a decode step is compiled for, and the device memory that it works on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scanline.kernels.cuda.matmul import BM, BN_RESIDUAL
from scanline.kernels.cuda.state import OUTSIDE
from scanline.kernels.short_conv import TAPS

LEVELS = 256
DELAY = 4  # steps between two writes of the state, see ``state_bytes``


@dataclass(frozen=True, kw_only=True)
class DecodeConfig:
    """Everything that the kernels are compiled for: sizes, options, dtype of the weights.

    ``width`` is the image's, in pixels, ``parts`` are the steps of one pixel, ``channels`` the
    values that one step decides, ``places`` the values that it looks at, ``code`` the features of
    which those are embedded, ``linear`` whether some of that is linear in intensities, ``first``
    the first step that the network models. ``delay`` is how many steps share one write of the
    state.
    """

    pixels: int
    width: int
    parts: int = 1
    channels: int = 1
    places: int
    code: int
    linear: bool = False
    classes: int = 0
    layers: int
    heads: int
    d_model: int
    d_ff: int
    outputs: int
    draws: int
    categorical: bool
    pre_norm: bool
    gelu: bool
    short_conv: bool = False
    first: int = 0
    first_value: int = 0
    dtype: torch.dtype = torch.bfloat16
    delay: int = DELAY

    @property
    def head_size(self) -> int:
        return self.d_model // self.heads

    @property
    def steps(self) -> int:
        return self.pixels * self.parts

    @property
    def columns(self) -> int:
        """Steps that one row of the image takes."""
        return self.width * self.parts

    @property
    def ring(self) -> int:
        """Steps that a short convolution keeps: one more than it looks back, 0 without one.

        So the step that is written is none of those that another program may still read.
        """
        return self.columns + self.parts + 1 if self.short_conv else 0

    def dtype_of(self, product: str) -> torch.dtype:
        """Give the dtype of a product's weights.

        Where intensities come in by a linear map, bf16's eight bits are too coarse at both ends:
        for what the first feed-forward network sees, which compares neighbouring ones, and for the
        means of logistics that are as narrow as an intensity.
        """
        exact = product == "0.linear1" or (product == "head" and not self.categorical)
        return torch.float32 if self.linear and exact else self.dtype

    @property
    def tiles(self) -> int:
        """Tiles of a row of the residual stream, each with statistics of its own."""
        return -(-self.d_model // BN_RESIDUAL)


def allocate_weights(s: DecodeConfig, device: torch.device | str) -> dict[str, Tensor]:
    """Give a network's weights, not filled: matrices ``[out, in]`` in ``s.dtype``, else float32.

    A layer's are named ``0.qkv.weight``, and so on; q, k and v are one product. Some matrices are
    float32 whatever ``s.dtype`` (``DecodeConfig.dtype_of``).
    """
    D = s.d_model
    products = {"head": (s.outputs, D)}
    vectors = {"norm.weight": D, "norm.bias": D}
    for layer in range(s.layers):
        products |= {
            f"{layer}.qkv": (3 * D, D), f"{layer}.out": (D, D),
            f"{layer}.linear1": (s.d_ff, D), f"{layer}.linear2": (D, s.d_ff),
        }  # fmt: skip
        vectors |= {f"{layer}.{norm}": D for norm in (
            "norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias",
        )}  # fmt: skip
    convolutions = [f"{layer}.conv{half}" for layer in range(s.layers) for half in (1, 2)]
    shapes = {
        "table": (s.places, OUTSIDE + 1, s.code), "code": (s.steps, D),
        "sources": (s.steps, s.places), "label": (s.classes + 1, D),
        "tables": (s.channels * (s.channels - 1) // 2, LEVELS, LEVELS),
        **{f"{name}.weight": (TAPS, D) for name in convolutions if s.short_conv},
    }  # fmt: skip
    weights = {
        name: torch.empty(
            shape, device=device, dtype=torch.int32 if name == "sources" else torch.float32
        )
        for name, shape in shapes.items()
    }
    for name, size in vectors.items():
        weights[name] = torch.empty(size, device=device)
    for name, matrix in products.items():
        weights[f"{name}.weight"] = torch.empty(matrix, device=device, dtype=s.dtype_of(name))
        weights[f"{name}.bias"] = torch.empty(matrix[0], device=device)
    return weights


def allocate(s: DecodeConfig, slots: int, device: torch.device | str) -> dict[str, Tensor]:
    """Give the buffers of so many slots: what an image is, its state, and a step's scratch."""
    N, T, D, H, K = slots, s.pixels, s.d_model, s.heads, s.head_size
    R = -(-N // BM) * BM  # rows, in whole tiles
    shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
        "slots": (torch.int32, (R,)),
        "positions": (torch.int32, (N,)),
        "canvas": (torch.uint8, (N, T, s.parts * s.channels)),
        "bits": (torch.float32, (N, T)),
        "known": (torch.uint8, (N, T)),
        "seed": (torch.int64, (N,)),
        "particle": (torch.int64, (N,)),
        "temperature": (torch.float32, (N,)),
        "top_p": (torch.float32, (N,)),
        "guidance": (torch.float32, (N,)),
        "label": (torch.int32, (N,)),
        "twin": (torch.int32, (N,)),
        "kv": (torch.float32, (s.layers, N, H, K, K)),
        "z": (torch.float32, (s.layers, N, H, K)),
        "waiting": (s.dtype, (s.layers, N, H, s.delay - 1, 2, K)),
        "ring": (torch.float32, (2 * s.layers, N, s.ring, D)),
        "x0": (torch.float32, (R, D)),
        "x1": (torch.float32, (R, D)),
        "statistics0": (torch.float32, (R, s.tiles, 2)),
        "statistics1": (torch.float32, (R, s.tiles, 2)),
        "convolved": (torch.float32, (R if s.short_conv else 0, D)),
        # In bf16 these cost mnist and cifar10 0.00001 bits/dim at most; the stream would cost
        # cifar10 0.010, and what is convolved 0.003.
        "qkv": (s.dtype, (R, 3 * D)),
        "o": (s.dtype, (R, D)),
        "hidden": (s.dtype, (R, s.d_ff)),
        "parameters": (torch.float32, (R, s.outputs)),
    }
    return {
        name: torch.empty(shape, dtype=dtype, device=device)
        for name, (dtype, shape) in shapes.items()
    }


def state_bytes(s: DecodeConfig) -> float:
    """Bytes of state that one step of one image moves, on average over ``delay`` steps.

    A head reads K (K + 1) numbers each step and writes them each ``delay``-th; a step that does
    not writes its 2 K instead, in the products' dtype, and each reads what waits. A short
    convolution reads four steps of its ring and writes one. In GB an image, with bf16 products, and
    the images a second that 3.35 TB/s (H100) allow for the state alone:

    ============= ==== ========= ========= ========= =========
    preset        K    delay 1   delay 2   delay 4   delay 8
    ============= ==== ========= ========= ========= =========
    mnist-paper   32   0.424     0.324     0.279     0.267
                       7,903     10,329    11,991    12,569
    cifar10-paper 32   3.322     2.542     2.189     2.089
                       1,008     1,318     1,530     1,604
    mnist         32   0.122     0.097     0.086     0.083
                       27,453    34,486    38,998    40,513
    cifar10       32   0.319     0.254     0.224     0.216
                       10,509    13,202    14,929    15,509
    ============= ==== ========= ========= ========= =========

    8 would move 4 % less than 4, with twice the buffer and the additions; which is quicker has not
    been measured.
    """
    K = s.head_size
    state, entry, n = 4 * K * (K + 1), 2 * K * s.dtype.itemsize, s.delay
    head = state + (state + (n - 1) * entry + n * (n - 1) / 2 * entry) / n
    ring = 4 * 2 * TAPS * s.d_model if s.short_conv else 0
    return s.layers * (s.heads * head + ring)


_PAPER: dict[str, Any] = {
    "places": 1, "code": 128, "heads": 8, "d_model": 256, "d_ff": 1024, "outputs": 30,
    "draws": 2, "categorical": False, "pre_norm": False, "gelu": False,
}  # fmt: skip
_OURS: dict[str, Any] = {
    "code": 128, "layers": 4, "heads": 4, "d_model": 128, "d_ff": 512, "pre_norm": True,
    "gelu": True, "short_conv": True, "classes": 10,
}  # fmt: skip
_MNIST: dict[str, Any] = {
    "pixels": 784, "width": 28, "places": 17, "outputs": 256, "draws": 1, "categorical": True,
    **_OURS,
}  # fmt: skip
_CIFAR10: dict[str, Any] = {
    "pixels": 1024, "width": 32, "channels": 3, "places": 51, "linear": True,
    **_OURS | {"layers": 8},
}  # fmt: skip

# The networks whose kernels are compiled ahead of time: the model's presets, and what they lack.
COMPILED: dict[str, DecodeConfig] = {
    "mnist-paper": DecodeConfig(pixels=784, width=28, layers=8, **_PAPER),
    "cifar10-paper": DecodeConfig(pixels=1024, width=32, parts=3, layers=16, **_PAPER),
    "mnist": DecodeConfig(**_MNIST),
    "cifar10": DecodeConfig(outputs=100, draws=4, categorical=False, **_CIFAR10),
    "heads of 64": DecodeConfig(**_MNIST | {"heads": 2}),
    "a head of 512": DecodeConfig(**_MNIST | {"heads": 1, "d_model": 512}),
    "not convolved": DecodeConfig(**_MNIST | {"short_conv": False}),
    "categorical RGB": DecodeConfig(outputs=768, draws=3, categorical=True, **_CIFAR10),
    "paper's, convolved": DecodeConfig(
        pixels=1024, width=32, parts=3, layers=16, short_conv=True, **_PAPER
    ),
}
