"""Sum of embedding table rows whose gradient is computed in C++."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from scanline.kernels.double_backward import refuse_double_backward
from scanline.kernels.native.training.library import require_library


class _EmbeddingSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, ids: Tensor) -> Tensor:
        ctx.rows = len(table)
        ctx.save_for_backward(ids)
        return F.embedding_bag(ids, table, mode="sum")

    @staticmethod
    @refuse_double_backward
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (ids,) = ctx.saved_tensors
        grad, ids = grad.contiguous(), ids.contiguous()
        sizes = len(grad), ids.shape[1], ctx.rows, grad.shape[1]
        gradient = grad.new_zeros(ctx.rows, grad.shape[1])
        require_library().run("embedding_sum_backward", *sizes, grad, ids, gradient)
        return gradient, None


def embedding_sum(table: Tensor, ids: Tensor) -> Tensor:
    """Sum table rows: float32 ``table: [R, D]``, int64 ``ids: [N, I]`` → ``[N, D]``.

    D must be a multiple of the vector size.
    """
    y: Tensor = _EmbeddingSum.apply(table, ids)
    return y
