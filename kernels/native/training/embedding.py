"""Sum of embedding table rows whose gradient is computed in C++, as a torch operator."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from scanline.kernels.custom_op import custom_op
from scanline.kernels.native.training.library import require_library


@custom_op("scanline::embedding_sum")
def embedding_sum(table: Tensor, ids: Tensor) -> Tensor:
    """Sum table rows: float32 ``table: [R, D]``, int64 ``ids: [N, I]`` → ``[N, D]``.

    D must be a multiple of the vector size.
    """
    return F.embedding_bag(ids, table, mode="sum")


@custom_op("scanline::embedding_sum_backward")
def _backward(grad: Tensor, ids: Tensor, rows: int) -> Tensor:
    grad, ids = grad.contiguous(), ids.contiguous()
    N, D = grad.shape
    gradient = grad.new_zeros(rows, D)
    require_library().run("embedding_sum_backward", N, ids.shape[1], rows, D, grad, ids, gradient)
    return gradient


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    table, ids = inputs
    ctx.rows = len(table)
    ctx.save_for_backward(ids)


def _differentiate(ctx: Any, grad: Tensor) -> Any:
    return _backward(grad, *ctx.saved_tensors, ctx.rows), None


embedding_sum.register_autograd(_differentiate, setup_context=_setup_context)
