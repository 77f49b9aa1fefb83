"""Linear layer whose bias gradient is summed by a Triton kernel in one pass over memory.

PyTorch sums the rows of a tall matrix at a fifth of the memory bandwidth.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn import functional as F

from scanline.kernels.cuda.available import PROGRAMS
from scanline.kernels.cuda.residual_kernels import column_sums_kernel
from scanline.kernels.cuda.variants import KernelVariant
from scanline.kernels.double_backward import refuse_double_backward

_ROWS, _COLUMNS, _WARPS = 32, 64, 4  # per tile


def column_sums(x: Tensor) -> Tensor:
    """Sum the rows of ``x: [N, O]`` in float32 and in a fixed order."""
    x = x.contiguous()
    N, columns = x.shape
    column_tiles = triton.cdiv(columns, _COLUMNS)
    tiles = triton.cdiv(N, _ROWS)
    tiles_per_program = max(1, triton.cdiv(tiles * column_tiles, PROGRAMS))
    programs = triton.cdiv(tiles, tiles_per_program)
    sums = x.new_empty(programs, columns, dtype=torch.float32)
    if sums.numel():
        column_sums_kernel[(programs, column_tiles)](
            x, sums, N, tiles_per_program,
            COLUMNS=columns, BT=_ROWS, BO=_COLUMNS, num_warps=_WARPS,
        )  # fmt: skip
    return sums.sum(0)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.input_dtype = x.dtype
        x, weight = x.to(dtype), weight.to(dtype)
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias.to(dtype))

    @staticmethod
    @refuse_double_backward
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        rows = grad.flatten(0, -2)
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = (rows @ weight).view(x.shape).to(ctx.input_dtype)
        grad_weight = (rows.T @ x.flatten(0, -2)).float()
        return grad_x, grad_weight, column_sums(rows), None


def triton_linear(x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    """Return W x + b in ``dtype``, for ``x: [..., I]``, ``weight: [O, I]`` and ``bias: [O]``.

    ``weight`` and ``bias`` are float32. Each gradient has the dtype of its tensor.
    """
    y: Tensor = _Linear.apply(x, weight, bias, dtype)
    return y


def variants() -> list[KernelVariant]:
    """List the kernel variants for the widths of common networks and the training dtypes."""
    return [
        KernelVariant(
            f"column_sums_kernel/{width}/{dtype}", column_sums_kernel,
            {
                "x": f"*{dtype}:16", "sums": "*fp32:16", "N": "i32", "tiles_per_program": "i32",
            },
            {"COLUMNS": width, "BT": _ROWS, "BO": _COLUMNS}, _WARPS, 3,
        )
        for width in (128, 384, 512, 768, 1024, 72)
        for dtype in ("bf16", "fp32")
    ]  # fmt: skip
