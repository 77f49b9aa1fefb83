"""Program that runs all C++ of training, run with sanitizers by ``test_build.py``."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from scanline.kernels.native.training import library
from scanline.kernels.native.training.attention import attention
from scanline.kernels.ops.embedding import embedding_sum
from scanline.kernels.ops.linear import LinearOutput, linear_gelu
from scanline.kernels.ops.residual import residual


def parameter(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, dtype=dtype, requires_grad=True)


def backward(*outputs: Tensor) -> None:
    torch.autograd.backward([x.float().sum() for x in outputs])


def run_all(chosen: library.TrainingLibrary, dtype: torch.dtype) -> None:
    library.get_library = lambda: chosen
    L = chosen.lanes
    for positions, vectors in [(1, 1), (2, 2), (17, 4), (5, 8)]:
        heads = parameter(2, positions, 3, 3, vectors * L, dtype=dtype)
        backward(attention(heads, parameter(3, 3, vectors * L)))
    bf16 = dtype == torch.bfloat16
    for positions, convolved in itertools.product((1, 9, 10, 40), (True, False)):
        D, taps = 3 * L, parameter(5, 3 * L) if convolved else None
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            added = LinearOutput(parameter(2, positions, D), torch.randn(D))
            norm = parameter(D), parameter(D)
            x, y = residual(parameter(2, positions, D), added, norm, taps, 9)
            z = linear_gelu(y, parameter(2 * L, D), parameter(2 * L))
        backward(x, z)
    backward(embedding_sum(parameter(5, L), torch.randint(0, 5, (7, 3))))


if __name__ == "__main__":
    for threads, dtype in itertools.product((1, 3), (torch.float32, torch.bfloat16)):
        run_all(library.TrainingLibrary(threads), dtype)
    print("clean")
