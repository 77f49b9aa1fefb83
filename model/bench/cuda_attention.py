"""How long the attention takes on a device, beside the bytes it must move.

``python -m scanline.model.bench.cuda_attention`` prints, for the shapes that training meets, the
milliseconds of one layer's forward and of forward and backward, in Triton, of q, k and v as one
product, and in torch operations.
``floor`` is what reading q, k, v and writing o once would take at the rate of a copy on the same
device.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from scanline.kernels.attention.naive import CHUNK, naive_linear_attention
from scanline.kernels.ops.attention import linear_attention, packed_linear_attention

ALLOWED = {torch.float32: 1e-5, torch.bfloat16: 1e-2}  # of the length of what is given
SHAPES = ((64, 784, 8, 32), (256, 784, 4, 32), (64, 3072, 8, 32), (1, 3072, 8, 32))


def median_ms(run: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Time ``run`` after three warm-ups, and give the median in milliseconds."""
    times = []
    for i in range(repeats + 3):
        began = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if i >= 3:
            times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times)


def check(device: torch.device) -> None:
    """Raise ``ValueError`` unless what is timed is the definition, on random inputs."""
    for dtype, allowed in ALLOWED.items():
        qkv = torch.randn(2, 97, 3, 3, 32, device=device).to(dtype)
        o = packed_linear_attention(qkv, None, "elu")
        q, k, v = qkv.double().unbind(2)
        exact, _ = naive_linear_attention(q, k, v, feature_map="elu")
        error = ((o.double() - exact).norm() / exact.norm()).item()
        if not error < allowed:
            raise ValueError(f"the attention is wrong by {error:.1e} in {dtype}: not timed")


def row(
    shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device, repeats: int
) -> str:
    """Time one ``[B, T, H, K]`` and give its line of the table."""
    B, T, H, K = shape
    qkv = torch.randn(B, T, 3, H, K, device=device, dtype=dtype, requires_grad=True)
    grad = torch.randn(shape, device=device, dtype=dtype)

    def packed() -> Tensor:
        return packed_linear_attention(qkv, None, "elu")

    def torch_s() -> Tensor:  # which another chunk than the kernels' takes
        q, k, v = qkv.unbind(2)
        return linear_attention(q, k, v, chunk=CHUNK - 1, feature_map="elu")[0]

    def forward(attend: Callable[[], Tensor]) -> None:
        with torch.no_grad():
            attend()

    def train(attend: Callable[[], Tensor]) -> None:
        torch.autograd.grad(attend(), qkv, grad)

    big = torch.empty(2 * grad.numel(), device=device, dtype=dtype)
    floor = median_ms(big.clone, device, repeats)  # reads two tensors, writes two
    figures = [
        median_ms(partial(run, attend), device, repeats)
        for attend in (packed, torch_s)
        for run in (forward, train)
    ]
    name = f"{'x'.join(map(str, shape))} {str(dtype).removeprefix('torch.')}"
    return f"{name:24}" + "".join(f"{ms:10.3f}" for ms in (floor, *figures))


def main() -> int:
    """Print the table; gives 1 where there is no CUDA device."""
    if not torch.cuda.is_available():
        print("there is no CUDA device to time", file=sys.stderr)  # noqa: T201
        return 1
    device = torch.device("cuda")
    check(device)
    heads = ("B x T x H x K, ms", "floor", "forward", "+backward", "torch", "+backward")
    print(f"{heads[0]:24}" + "".join(f"{head:>10}" for head in heads[1:]))  # noqa: T201
    for shape in SHAPES:
        for dtype in (torch.float32, torch.bfloat16):
            print(row(shape, dtype, device, 20), flush=True)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
