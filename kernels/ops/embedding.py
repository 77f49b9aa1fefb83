"""Sums of embedding table rows."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from scanline.kernels.native.training import embedding as native
from scanline.kernels.native.training.library import supports


def embedding_sum(table: Tensor, ids: Tensor) -> Tensor:
    """Sum table rows: ``table: [R, D]``, int64 ``ids: [N, I]`` in [0, R) → ``[N, D]``.

    Gradients flow to the table. On a CPU they are computed in one pass in C++, because torch sorts
    all ids first.
    """
    if supports(table, torch.float32):
        return native.embedding_sum(table, ids)
    return F.embedding_bag(ids, table, mode="sum")
