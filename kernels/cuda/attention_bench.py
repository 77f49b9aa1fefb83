"""How long the attention takes on a device, beside the bytes it must move.

``python -m scanline.kernels.cuda.attention_bench`` prints, for the shapes that training meets, the
milliseconds of one layer's forward and of forward and backward, in Triton and in torch operations.
``floor`` is what reading q, k, v and writing o once would take at the rate of a copy on the same
device.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from scanline.kernels.attention.definitions import naive_linear_attention
from scanline.kernels.attention.linear import linear_attention

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
    q, k, v = (torch.randn(2, 97, 3, 32, device=device) for _ in range(3))
    o, _ = linear_attention(q, k, v, feature_map="elu")
    exact, _ = naive_linear_attention(q.double(), k.double(), v.double(), feature_map="elu")
    error = ((o.double() - exact).norm() / exact.norm()).item()
    if not error < 1e-5:
        raise ValueError(f"the attention is wrong by {error:.1e}: not timed")


def row(
    shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device, repeats: int
) -> str:
    """Time one ``[B, T, H, K]`` and give its line of the table."""
    q, k, v = (torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in "qkv")
    grad = torch.randn_like(q)

    def forward(chunk: int) -> Tensor:
        with torch.no_grad():
            return linear_attention(q, k, v, chunk=chunk, feature_map="elu")[0]

    def train(chunk: int) -> None:
        o, _ = linear_attention(q, k, v, chunk=chunk, feature_map="elu")
        torch.autograd.grad(o, (q, k, v), grad)

    big = torch.cat([q.detach().flatten(), v.detach().flatten()])
    floor = median_ms(big.clone, device, repeats)  # reads two tensors, writes two
    # Another chunk than the kernels' takes the torch operations.
    figures = [
        median_ms(lambda run=run, chunk=chunk: run(chunk), device, repeats)  # type: ignore[misc]
        for chunk in (32, 31)
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
