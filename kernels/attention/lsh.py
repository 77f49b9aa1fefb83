"""Attention among positions that hash alike (Kitaev et al. 2020, *Reformer*).

Queries are keys (``qk``), a key of unit length. A round hashes every position into a bucket (the
nearest of directions that a random turn made), sorts positions by bucket, cuts that order into
chunks, and lets a position i see P_i: those of its own chunk and of the one before; where it is
causal, only those that are not after it. With s_ij = q_iᵀ k_j / √K, over rounds r,

    o_i = Σ_r Σ_{j ∈ P_i^r} exp(s_ij) v_j / Σ_r Σ_{j ∈ P_i^r} exp(s_ij)

where a position sees itself only if it sees no other (s_ii = -10⁵). So, causal, no value has
weight before its time; but *which* earlier ones a position sees depends on where later ones fall:
these outputs are not those of an RNN, and their likelihoods are not quite likelihoods.

Rows may end before T, at ``lengths: int64 [B]``. What lies after a row's end is sorted behind all
of it and seen by nobody else, so that it changes nothing before the end.

Shapes: ``qk: [B, T, H, K]``, ``v, o: [B, T, H, V]``, ``rotations: [R, H, K, N / 2]`` for R
rounds of N buckets.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor
from torch.nn import functional as F

from scanline.kernels.attention.naive import CHUNK, check_shapes

SELF_SCORE = -1e5


def random_rotations(rounds: int, heads: int, K: int, buckets: int) -> Tensor:
    """Draw the rotations of every round and head from torch's generator: ``[R, H, K, N / 2]``."""
    return torch.randn(rounds, heads, K, buckets // 2)


@torch.no_grad()
def lsh_order(qk: Tensor, rotations: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Sort the positions by bucket, those of one bucket by time: int64 ``[B, R, H, T]``."""
    rotated = torch.einsum("bthk,rhkn->brhtn", qk, rotations.to(qk.dtype))
    buckets = torch.cat([rotated, -rotated], -1).argmax(-1)
    if lengths is not None:
        after = torch.arange(qk.shape[1], device=qk.device) >= lengths.unsqueeze(1)
        buckets = buckets.masked_fill(after[:, None, None], 2 * rotations.shape[3])
    return buckets.sort(dim=-1, stable=True).indices


def lsh_attention(
    qk: Tensor,
    v: Tensor,
    rotations: Tensor,
    chunk: int = CHUNK,
    lengths: Tensor | None = None,
    causal: bool = True,
) -> Tensor:
    """Compute it chunk against chunk: time and memory linear in T.

    ``qk: [B, T, H, K]``, ``v: [B, T, H, V]``, ``rotations`` as ``random_rotations`` gives them,
    rows as long as T unless ``lengths`` says otherwise; returns ``o`` like ``v``. Gradients flow to
    qk and v, not through the hashes. Raises ``ValueError`` on wrong shapes.
    """
    _check(qk, v, rotations, lengths)
    B, T, H, K = qk.shape
    V, R, padding = v.shape[3], len(rotations), -T % chunk
    order = lsh_order(qk, rotations, lengths)
    # Positions after the last fill the last chunk; being later than all, nobody sees them.
    after = torch.arange(T, T + padding, device=qk.device).expand(B, R, H, -1)
    order = torch.cat([order, after], -1)

    def in_order(x: Tensor) -> Tensor:
        """``[B, T, H, X]`` → ``[B, R, H, chunks, chunk, X]``."""
        x = F.pad(x, (0, 0, 0, 0, 0, padding)).transpose(1, 2).unsqueeze(1)
        index = order.unsqueeze(-1).expand(*order.shape, x.shape[-1])
        return x.expand(B, R, *x.shape[2:]).gather(3, index).view(B, R, H, -1, chunk, x.shape[-1])

    def with_chunk_before(x: Tensor, first: float = 0) -> Tensor:
        before = F.pad(x[:, :, :, :-1], (0, 0, 0, 0, 1, 0), value=first)
        return torch.cat([before, x], 4)

    q, places = in_order(qk), order.view(B, R, H, -1, chunk, 1)
    k = with_chunk_before(F.normalize(q, dim=-1))
    seen = with_chunk_before(places, T + padding).transpose(-1, -2)
    last = places if causal else _ends(qk, lengths) - 1
    scores = (q @ k.transpose(-1, -2) / math.sqrt(K)).masked_fill(seen > last, -math.inf)
    scores = scores.masked_fill(seen == places, SELF_SCORE)
    total = scores.logsumexp(-1, keepdim=True)
    rounds = (scores - total).exp() @ with_chunk_before(in_order(v))

    back = order.argsort(-1).unsqueeze(-1)[:, :, :, :T]
    total = total.view(B, R, H, -1, 1).gather(3, back)
    rounds = rounds.view(B, R, H, -1, V).gather(3, back.expand(-1, -1, -1, -1, V))
    return (rounds * total.softmax(1)).sum(1).transpose(1, 2)


def naive_lsh_attention(
    qk: Tensor,
    v: Tensor,
    rotations: Tensor,
    chunk: int = CHUNK,
    lengths: Tensor | None = None,
    causal: bool = True,
) -> Tensor:
    """Compute the formula as written, with every position's own set of every round: the oracle.

    Takes, returns and raises what ``lsh_attention`` does.
    """
    _check(qk, v, rotations, lengths)
    B, T, H, K = qk.shape
    times = torch.zeros(B, H, T, T, dtype=qk.dtype)  # in how many rounds i sees j
    orders, ends = lsh_order(qk, rotations, lengths).tolist(), _ends(qk, lengths).flatten().tolist()
    for b, r, h in itertools.product(range(B), range(len(rotations)), range(H)):
        chunk_of = {position: place // chunk for place, position in enumerate(orders[b][r][h])}
        for i in range(T):
            for j in {*range(i + 1 if causal else ends[b]), i}:
                times[b, h, i, j] += chunk_of[i] - 1 <= chunk_of[j] <= chunk_of[i]
    keys = qk / qk.norm(dim=-1, keepdim=True)
    scores = torch.einsum("bthk,bshk->bhts", qk, keys) / math.sqrt(K)
    scores = scores.masked_fill(torch.eye(T, dtype=torch.bool), SELF_SCORE)
    weights = (scores + times.log()).softmax(-1)
    return torch.einsum("bhts,bshv->bthv", weights, v)


def _ends(qk: Tensor, lengths: Tensor | None) -> Tensor:
    """Give every row's length, T by default: ``[B, 1, 1, 1, 1, 1]``."""
    B, T = qk.shape[:2]
    ends = lengths if lengths is not None else torch.full((B,), T, device=qk.device)
    return ends.view(B, 1, 1, 1, 1, 1)


def _check(qk: Tensor, v: Tensor, rotations: Tensor, lengths: Tensor | None) -> None:
    check_shapes(qk, qk, v)
    if lengths is not None and lengths.shape != qk.shape[:1]:
        raise ValueError(f"lengths must be [{len(qk)}], not {[*lengths.shape]}")
    _, _, H, K = qk.shape
    if rotations.ndim != 4 or rotations.shape[1:3] != (H, K):
        raise ValueError(f"rotations must be [R, {H}, {K}, N / 2], not {[*rotations.shape]}")
