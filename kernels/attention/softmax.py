"""Causal softmax attention: all positions at once, by definition, and one step.

With i ≤ j the causal order and K the features of a head (Katharopoulos et al. 2020, eq. 2 and 3),

    o_j = Σ_i exp(q_jᵀ k_i / √K) v_i / Σ_i exp(q_jᵀ k_i / √K)

so a step needs all earlier keys and values. Shapes: ``q, k: [B, T, H, K]``,
``v, o: [B, T, H, V]``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from scanline.kernels.attention.naive import check_shapes


def softmax_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute all positions at once with torch's kernels, in quadratic time in T.

    ``q, k: [B, T, H, K]``, ``v: [B, T, H, V]``. Returns ``o`` like ``v``. Raises ``ValueError`` on
    wrong shapes.
    """
    check_shapes(q, k, v)
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def naive_softmax_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute the formula with the full T × T matrix, as the reference for other forms.

    ``q, k: [B, T, H, K]``, ``v: [B, T, H, V]``. Returns ``o`` like ``v``. Raises ``ValueError`` on
    wrong shapes.
    """
    check_shapes(q, k, v)
    T = q.shape[1]
    later = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)
    scores = torch.einsum("bthk,bshk->bhts", q, k) / math.sqrt(q.shape[3])
    weights = scores.masked_fill(later, -math.inf).softmax(-1)
    return torch.einsum("bhts,bshv->bthv", weights, v)


def softmax_attention_step(q: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
    """Compute one position of each row, which attends to all positions up to and including its own.

    Args:
        q: Queries ``[B, H, K]``.
        keys: Keys ``[B, H, S, K]``. Entries after a row's position are ignored but must be finite.
        values: Values ``[B, H, S, V]``, likewise.
        positions: Position of each row, int64 ``[B]`` in [0, S).

    Returns:
        ``o: [B, H, V]``.
    """
    seen = int(positions.max()) + 1
    keys, values = keys[:, :, :seen], values[:, :, :seen]
    later = torch.arange(seen, device=q.device) > positions.unsqueeze(1)
    scores = torch.einsum("bhk,bhsk->bhs", q, keys) / math.sqrt(q.shape[2])
    weights = scores.masked_fill(later.unsqueeze(1), -math.inf).softmax(-1)
    return torch.einsum("bhs,bhsv->bhv", weights, values)
