"""Benchmark of linear attention on a CUDA device.

``python -m scanline.model.bench.cuda_attention`` prints, for shapes of training, the milliseconds
of one layer's forward pass and of its forward and backward pass: with the Triton kernels on packed
q, k and v, and with torch operations. ``floor`` is the time of a memory copy of as many bytes as q,
k, v and o have.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from scanline.kernels.attention.chunked import torch_linear_attention
from scanline.kernels.attention.features import elu_feature_map
from scanline.kernels.attention.naive import naive_linear_attention
from scanline.kernels.ops.attention import packed_linear_attention
from scanline.model.bench.cuda_training import median_seconds

MAX_ERRORS = {torch.float32: 1e-5, torch.bfloat16: 1e-2}  # relative to the output's norm
SHAPES = ((64, 784, 8, 32), (256, 784, 4, 32), (64, 3072, 8, 32), (1, 3072, 8, 32))


def check(device: torch.device) -> None:
    """Compare the Triton kernels with the definition on random inputs.

    Raises:
        ValueError: If the error is too large.
    """
    for dtype, max_error in MAX_ERRORS.items():
        qkv = torch.randn(2, 97, 3, 3, 32, device=device).to(dtype)
        o = packed_linear_attention(qkv, None, "elu")
        q, k, v = qkv.double().unbind(2)
        exact, _ = naive_linear_attention(elu_feature_map(q), elu_feature_map(k), v)
        error = ((o.double() - exact).norm() / exact.norm()).item()
        if not error < max_error:
            raise ValueError(f"attention differs from the definition by {error:.1e} in {dtype}")


def format_row(
    shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device, repeats: int
) -> str:
    """Time one shape ``[B, T, H, K]`` and return its row of the table."""
    B, T, H, K = shape
    qkv = torch.randn(B, T, 3, H, K, device=device, dtype=dtype, requires_grad=True)
    grad = torch.randn(shape, device=device, dtype=dtype)

    def packed() -> Tensor:
        return packed_linear_attention(qkv, None, "elu")

    def unfused() -> Tensor:
        q, k, v = qkv.unbind(2)
        return torch_linear_attention(elu_feature_map(q), elu_feature_map(k), v)[0]

    def forward(attend: Callable[[], Tensor]) -> None:
        with torch.no_grad():
            attend()

    def train(attend: Callable[[], Tensor]) -> None:
        torch.autograd.grad(attend(), qkv, grad)

    two = torch.empty(2 * grad.numel(), device=device, dtype=dtype)
    # A copy reads and writes the bytes of two tensors.
    floor = 1e3 * median_seconds(two.clone, device, repeats)
    figures = [
        1e3 * median_seconds(partial(run, attend), device, repeats)
        for attend in (packed, unfused)
        for run in (forward, train)
    ]
    name = f"{'x'.join(map(str, shape))} {str(dtype).removeprefix('torch.')}"
    return f"{name:24}" + "".join(f"{ms:10.3f}" for ms in (floor, *figures))


def main() -> int:
    """Print the table and return the exit code, 1 without a CUDA device."""
    if not torch.cuda.is_available():
        print("no CUDA device found", file=sys.stderr)  # noqa: T201
        return 1
    device = torch.device("cuda")
    check(device)
    headings = ("B x T x H x K, ms", "floor", "forward", "+backward", "torch", "+backward")
    print(f"{headings[0]:24}" + "".join(f"{heading:>10}" for heading in headings[1:]))  # noqa: T201
    for shape in SHAPES:
        for dtype in (torch.float32, torch.bfloat16):
            print(format_row(shape, dtype, device, 20), flush=True)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
