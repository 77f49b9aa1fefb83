"""Emulator of the fused CUDA kernel: its source compiled for the CPU, threads as coroutines."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from scanline.kernels.cache import atomic_path
from scanline.kernels.cuda.buffers import allocate_buffers, allocate_weights
from scanline.kernels.cuda.decode_config import DecodeConfig
from scanline.kernels.cuda.fused.driver import literal
from scanline.kernels.cuda.fused.fused_decode import LaunchConfig, arguments, defines, kernel_memory
from scanline.kernels.native.build import find_compiler
from scanline.model.config import ModelConfig
from scanline.model.decoders.base import InputBatch
from scanline.model.decoders.packing import decode_config_for, load_weights
from scanline.model.network import LinearTransformer
from tests.model.decoders.sampling_case import SamplingCase, rows_of, twins_of

SOURCE = Path(__file__).with_name("fused_decode.cpp")
FLAGS = (
    "-std=c++20", "-O1", "-ffp-contract=off", "-fPIC", "-shared", "-w",
    "-U_FORTIFY_SOURCE",  # set by some compilers; it forbids longjmp between stacks
)  # fmt: skip
DEVICE_DTYPES = {np.dtype(np.bool_): np.uint8, np.dtype(np.uint64): np.int64}
INPUTS = tuple(field.name for field in fields(InputBatch))


class DrawnImages(NamedTuple):
    """Results and state of all slots."""

    canvas: NDArray[np.uint8]
    bits: NDArray[np.float32]
    positions: NDArray[np.int32]
    kv: torch.Tensor
    z: torch.Tensor
    pending: torch.Tensor


def build(s: DecodeConfig, config: LaunchConfig, folder: Path) -> ctypes.CDLL:
    """Compile the kernel for the CPU, unless ``folder``, which processes may share, has it."""
    options = [f"-D{name}={literal(value)}" for name, value in defines(s, config).items()]
    path = folder / f"{hashlib.sha256(' '.join(options).encode()).hexdigest()}.so"
    if not path.exists():
        with atomic_path(path) as built:
            command = [*find_compiler(), *FLAGS, *options, str(SOURCE), "-o", str(built)]
            subprocess.run(command, check=True, capture_output=True, text=True)
    return ctypes.CDLL(str(path))


def _load_inputs(buffers: Mapping[str, torch.Tensor], inputs: InputBatch) -> None:
    """Write the inputs of the first slots to the buffers."""
    for name in INPUTS:
        array = np.ascontiguousarray(getattr(inputs, name))
        array = array.view(DEVICE_DTYPES.get(array.dtype, array.dtype))
        slots = buffers[name][: len(array)]
        slots.copy_(torch.from_numpy(array).reshape(slots.shape))


def draw(
    network: LinearTransformer, config: LaunchConfig, inputs: InputBatch, rows: Sequence[int],
    folder: Path,
    calls: Sequence[int], s: DecodeConfig | None = None,
    state: Mapping[str, torch.Tensor] | None = None,
) -> DrawnImages:  # fmt: skip
    """Draw images in ``rows`` slots, with one launch per number of pixels in ``calls``.

    Memory that the kernel must not read is filled with NaN. ``state`` replaces buffers.
    """
    s, slots = s or decode_config_for(network.config), len(inputs.seed)
    weights, buffers = allocate_weights(s, "cpu"), allocate_buffers(s, slots, "cpu")
    load_weights(weights, network)
    for name, buffer in buffers.items():
        if name in ("kv", "z", "positions", "bits"):
            buffer.zero_()
        else:
            buffer.fill_(
                float("nan") if buffer.is_floating_point() else -1 if name == "slots" else 0
            )
    _load_inputs(buffers, inputs)
    for name, tensor in (state or {}).items():
        buffers[name].copy_(tensor)
    buffers["slots"][: len(rows)] = torch.tensor(rows, dtype=torch.int32)
    library, memory = build(s, config, folder), kernel_memory(s, weights, buffers)
    clusters, rows_per_cluster = config.partition(len(rows), 2)
    for pixels in calls:
        library.run(ctypes.byref(arguments(memory, len(rows), rows_per_cluster, pixels)), clusters)
    shape = (slots, network.config.pixels, network.config.channels)
    canvas = buffers["canvas"].numpy().reshape(shape)
    return DrawnImages(
        canvas,
        buffers["bits"].numpy(),
        buffers["positions"].numpy(),
        buffers["kv"],
        buffers["z"],
        buffers["pending"],
    )


def sample(
    config: ModelConfig, launch_config: LaunchConfig, case: SamplingCase, folder: Path
) -> NDArray[np.uint8]:
    """Sample the first step's values of every slot, twins included, as the kernel does."""
    s, slots = decode_config_for(config), 2 * len(case.values)
    weights, buffers = allocate_weights(s, "cpu"), allocate_buffers(s, slots, "cpu")
    for name in ("positions", "bits", "known"):
        buffers[name].zero_()
    buffers["twin"].fill_(-1)
    _load_inputs(buffers, replace(case.inputs, twin=twins_of(case.inputs)))
    rows, parameters = rows_of(case.inputs, case.parameters, case.unconditional)
    buffers["slots"][:slots] = torch.from_numpy(rows)
    padded = torch.nn.functional.pad(parameters, (0, -parameters.shape[1] % 16), value=torch.nan)
    memory = kernel_memory(s, weights, buffers)
    given = arguments(memory, slots, slots, 1)
    build(s, launch_config, folder).sample(
        ctypes.byref(given), ctypes.c_void_p(padded.contiguous().data_ptr())
    )
    canvas = buffers["canvas"].numpy().reshape(slots, config.pixels, config.channels)
    return canvas[:, 0]
