"""Attention among positions with equal hashes (Kitaev et al. 2020, *Reformer*).

Queries and keys are shared (``qk``); keys are normalised to unit length. A round r hashes every
position into a bucket (the nearest direction after a random rotation), sorts positions by bucket,
cuts that order into chunks, and lets position i attend to P_i^r: the positions in its own chunk and
the one before (if causal, only those not after i). With s_ij = q_iᵀ k_j / √K, the rounds are
combined in one of two ways.

- ``union`` (Kitaev et al., section 2 and appendix A): i attends to the union P_i of all P_i^r,

      o_i = Σ_{j ∈ P_i} exp(s_ij) v_j / Σ_{j ∈ P_i} exp(s_ij)

  where a position attends to itself only if it can attend to no other (s_ii = -10⁵). It is computed
  round by round with the scores s_ij - log N_ij, where N_ij is the number of rounds with j ∈ P_i^r,
  so that a pair that meets in several rounds counts once.

- ``mean`` (the implementation of Katharopoulos et al.): the outputs of the R rounds are averaged,

      o_i = 1/R Σ_r Σ_{j ∈ P_i^r} exp(s_ij) v_j / Σ_{j ∈ P_i^r} exp(s_ij)

  where a position attends to itself as to any other.

If causal, no value has weight before its time. But *which* earlier positions a position attends to
depends on the hashes of later ones, so these outputs are not those of an RNN, and the likelihoods
are not exact.

The last chunk is padded, so the length need not be a multiple of the chunk. Rows may end before T,
at ``lengths: int64 [B]``. Positions after a row's end are sorted behind all others and no position
before the end attends to them.

Shapes: ``qk: [B, T, H, K]``, ``v, o: [B, T, H, V]``, ``rotations: [R, H, K, N / 2]`` for R rounds
of N buckets.
"""

from __future__ import annotations

import itertools
import math
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from scanline.kernels.attention.naive import CHUNK, check_shapes

SELF_SCORE = -1e5

CombineRounds = Literal["union", "mean"]


def random_rotations(rounds: int, heads: int, K: int, buckets: int) -> Tensor:
    """Draw the rotations of all rounds and heads with torch's generator: ``[R, H, K, N / 2]``."""
    return torch.randn(rounds, heads, K, buckets // 2)


@torch.no_grad()
def lsh_order(qk: Tensor, rotations: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Return positions sorted by bucket, and by time within a bucket: int64 ``[B, R, H, T]``."""
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
    combine: CombineRounds = "union",
) -> Tensor:
    """Compute attention chunk by chunk, in time and memory linear in T.

    Gradients flow to ``qk`` and ``v``, but not through the hashes.

    Args:
        qk: Shared queries and keys ``[B, T, H, K]``.
        v: Values ``[B, T, H, V]``.
        rotations: From ``random_rotations``.
        chunk: Positions per chunk.
        lengths: Length of each row; T by default.
        causal: If False, positions also attend to later ones.
        combine: How the rounds are combined.

    Returns:
        ``o`` like ``v``.

    Raises:
        ValueError: Wrong shapes, or an invalid ``chunk`` or ``combine``.
    """
    _check(qk, v, rotations, chunk, lengths, combine)
    B, T, H, K = qk.shape
    V, R, padding = v.shape[3], len(rotations), -T % chunk
    order = lsh_order(qk, rotations, lengths)
    # Pad the last chunk with positions after all others, to which no position attends. The first
    # chunk, which has none before it, sees such positions instead.
    padded = T + padding
    after = torch.arange(T, padded, device=qk.device).expand(B, R, H, -1)
    order = torch.cat([order, after], -1)
    rank = order.argsort(-1)
    key_order = _with_chunk_before(order.unflatten(3, (-1, chunk)), padded)

    def take(x: Tensor, positions: Tensor) -> Tensor:
        """``[B, T, H, X]``, ``[B, R, H, …]`` → rows ``[B * R * H * …, X]``."""
        x = F.pad(x, (0, 0, 0, 0, 0, padded + 1 - T)).transpose(1, 2).unsqueeze(1)
        return _take_rows(x, positions.flatten(3))

    q = take(qk, order).view(-1, chunk, K)
    k = take(F.normalize(qk, dim=-1), key_order).view(-1, 2 * chunk, K)
    values = take(v, key_order).view(-1, 2 * chunk, V)
    positions, key_positions = order.view(B, R, H, -1, chunk, 1), key_order.unsqueeze(4)
    own = key_positions == positions
    last = positions if causal else _ends(qk, lengths) - 1
    bias = q.new_zeros(own.shape)
    if combine == "union":
        if R > 1:
            bias -= _count_meetings(order, rank, chunk).to(bias.dtype).log()
        bias.masked_fill_(own, SELF_SCORE)
    bias.masked_fill_((key_positions > last) & ~own, -math.inf)
    scores = torch.baddbmm(bias.flatten(0, 3), q, k.mT, alpha=1 / math.sqrt(K))

    rounds = (scores.softmax(-1) @ values).view(B, R, H, padded, V)
    rounds = _take_rows(rounds, rank[..., :T]).view(B, R, H, T, V)
    if combine == "mean":
        return rounds.mean(1).transpose(1, 2)
    total = scores.logsumexp(-1).view(B, R, H, padded).gather(3, rank[..., :T])
    return (rounds * total.softmax(1).unsqueeze(-1)).sum(1).transpose(1, 2)


def _take_rows(x: Tensor, positions: Tensor) -> Tensor:
    """Take rows at ``positions: int64 [B, R, H, N]`` of ``x [B, R or 1, H, S, X]``.

    Returns ``[B * R * H * N, X]``. ``gather`` would be slower, because it reads an index for each
    element.
    """
    S = x.shape[3]
    first = torch.arange(0, x.shape[:4].numel(), S, device=x.device).view(*x.shape[:3], 1)
    return x.flatten(0, 3).index_select(0, (first + positions).flatten())


def _with_chunk_before(x: Tensor, first: int) -> Tensor:
    """Add the previous chunk to each: ``[B, R, H, C, chunk]`` → ``[B, R, H, C, 2 chunk]``.

    The first chunk has none before it, and gets the value ``first``.
    """
    before = F.pad(x[..., :-1, :], (0, 0, 1, 0), value=first)
    return torch.cat([before, x], -1)


@torch.no_grad()
def _count_meetings(order: Tensor, rank: Tensor, chunk: int) -> Tensor:
    """Return N_ij, the number of rounds whose chunks let i see j, for the pairs of each round.

    Args:
        order: Positions in the order of each round: ``[B, R, H, S]``.
        rank: Inverse of ``order``.
        chunk: Positions per chunk.

    Returns:
        uint8 ``[B, R, H, S / chunk, chunk, 2 chunk]``, at least 1.
    """
    B, R, H, S = order.shape
    counts = order.new_zeros(B, R, H, S // chunk, chunk, 2 * chunk, dtype=torch.uint8)
    for chunks in (rank // chunk).int().unbind(1):  # the chunk of each position in one round
        own = chunks.unsqueeze(1).expand(B, R, H, S).gather(3, order).view(B, R, H, -1, chunk)
        distance = own.unsqueeze(5) - _with_chunk_before(own, 0).unsqueeze(4)
        counts += (distance == 0) | (distance == 1)
    # The first chunk has none before it. Those pairs have no weight, and may have met in no round.
    return counts.clamp_(min=1)


def naive_lsh_attention(
    qk: Tensor,
    v: Tensor,
    rotations: Tensor,
    chunk: int = CHUNK,
    lengths: Tensor | None = None,
    causal: bool = True,
    combine: CombineRounds = "union",
) -> Tensor:
    """Compute the formula with each position's set of each round, as the reference.

    Arguments, result and errors are those of ``lsh_attention``.
    """
    _check(qk, v, rotations, chunk, lengths, combine)
    B, T, H, K = qk.shape
    R = len(rotations)
    seen = torch.zeros(B, R, H, T, T, dtype=torch.bool)  # whether i attends to j in a round
    orders, ends = lsh_order(qk, rotations, lengths).tolist(), _ends(qk, lengths).flatten().tolist()
    for b, r, h in itertools.product(range(B), range(len(rotations)), range(H)):
        chunk_of = {position: rank // chunk for rank, position in enumerate(orders[b][r][h])}
        for i in range(T):
            for j in {*range(i + 1 if causal else ends[b]), i}:
                seen[b, r, h, i, j] = chunk_of[i] - 1 <= chunk_of[j] <= chunk_of[i]
    keys = qk / qk.norm(dim=-1, keepdim=True)
    scores = torch.einsum("bthk,bshk->bhts", qk, keys) / math.sqrt(K)
    if combine == "union":
        scores = scores.masked_fill(torch.eye(T, dtype=torch.bool), SELF_SCORE)
        seen = seen.any(1, keepdim=True)
    weights = scores.unsqueeze(1).masked_fill(~seen, -math.inf).softmax(-1).mean(1)
    return torch.einsum("bhts,bshv->bthv", weights, v)


def _ends(qk: Tensor, lengths: Tensor | None) -> Tensor:
    """Return each row's length, T by default: ``[B, 1, 1, 1, 1, 1]``."""
    B, T = qk.shape[:2]
    ends = lengths if lengths is not None else torch.full((B,), T, device=qk.device)
    return ends.view(B, 1, 1, 1, 1, 1)


def _check(
    qk: Tensor, v: Tensor, rotations: Tensor, chunk: int, lengths: Tensor | None, combine: str
) -> None:
    check_shapes(qk, qk, v)
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, not {chunk}")
    if combine not in get_args(CombineRounds):
        raise ValueError(f"combine must be 'union' or 'mean', not {combine!r}")
    if lengths is not None and lengths.shape != qk.shape[:1]:
        raise ValueError(f"lengths must be [{len(qk)}], not {[*lengths.shape]}")
    _, _, H, K = qk.shape
    if rotations.ndim != 4 or rotations.shape[1:3] != (H, K):
        raise ValueError(f"rotations must be [R, {H}, {K}, N / 2], not {[*rotations.shape]}")
