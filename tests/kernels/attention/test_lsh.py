"""LSH attention: its formulas and independent implementations."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from torch import Tensor

from scanline.kernels.attention.lsh import (
    SELF_SCORE,
    CombineRounds,
    lsh_attention,
    lsh_order,
    naive_lsh_attention,
    random_rotations,
)
from tests.conftest import assert_close

every_rounds = pytest.mark.parametrize("rounds", [1, 4])
every_combine = pytest.mark.parametrize("combine", ["union", "mean"])


def inputs(
    rounds: int, T: int, B: int = 2, H: int = 2, K: int = 6, V: int = 5
) -> tuple[Tensor, Tensor, Tensor]:
    qk, v = (torch.randn(B, T, H, size, dtype=torch.float64) for size in (K, V))
    return qk, v, random_rotations(rounds, H, K, 8).double()


@pytest.mark.parametrize(("T", "chunk"), [(1, 4), (3, 4), (32, 8), (37, 8), (24, 12), (40, 64)])
@pytest.mark.parametrize("causal", [True, False])
@every_combine
@every_rounds
def test_chunked_form_and_gradients_match_the_formula(
    rounds: int, combine: CombineRounds, causal: bool, T: int, chunk: int
) -> None:
    qk, v, rotations = inputs(rounds, T)
    leaves = [qk.requires_grad_(), v.requires_grad_()]
    for lengths in (None, torch.tensor([T, T // 2 + 1])):
        forms = lsh_attention, naive_lsh_attention
        o, expected = (form(qk, v, rotations, chunk, lengths, causal, combine) for form in forms)
        assert_close(o, expected)
    grad = torch.randn_like(o)
    mine = torch.autograd.grad(o, leaves, grad)
    for one, other in zip(mine, torch.autograd.grad(expected, leaves, grad), strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("causal", [True, False])
def test_pairs_that_meet_in_several_rounds_count_once(causal: bool) -> None:
    """Compute ``union`` from each round's scores and counts, as in Kitaev et al., appendix A."""
    qk, v, rotations = inputs(4, 24, B=1, H=1)
    q, chunk, T = qk[0, :, 0], 4, 24
    chunks = lsh_order(qk, rotations)[0, :, 0].argsort(-1) // chunk
    distance = chunks.unsqueeze(2) - chunks.unsqueeze(1)  # [R, T, T]
    seen = (distance == 0) | (distance == 1)
    if causal:
        seen = seen & torch.ones(T, T, dtype=torch.bool).tril()
    counts = seen.sum(0)
    assert {1, 2, 3, 4} <= {*counts.flatten().tolist()}
    scores = q @ (q / q.norm(dim=1, keepdim=True)).T / math.sqrt(6)
    scores = scores.masked_fill(torch.eye(T, dtype=torch.bool), SELF_SCORE)
    per_round = torch.where(seen, scores - counts.double().log(), -torch.inf)
    z = per_round.logsumexp(-1)  # z(i, P_i^r)
    outputs = (per_round - z.unsqueeze(-1)).exp() @ v[0, :, 0]
    expected = ((z - z.logsumexp(0)).exp().unsqueeze(-1) * outputs).sum(0)
    o = lsh_attention(qk, v, rotations, chunk, causal=causal)[0, :, 0]
    assert_close(o, expected)
    twice = torch.cat([rotations, rotations])  # equal rounds change nothing
    assert_close(lsh_attention(qk, v, twice, chunk, causal=causal)[0, :, 0], expected)


def test_formula_of_an_example() -> None:
    """Five positions in chunks of two, ordered by their hashes."""
    qk, v, rotations = inputs(1, 5, B=1, H=1)
    q, values = qk[0, :, 0], v[0, :, 0]
    hashes = torch.cat([q @ rotations[0, 0], -(q @ rotations[0, 0])], -1).argmax(-1).tolist()
    order = sorted(range(5), key=lambda i: (hashes[i], i))
    assert lsh_order(qk, rotations)[0, 0, 0].tolist() == order
    o = naive_lsh_attention(qk, v, rotations, 2)[0, :, 0]
    for rank, i in enumerate(order):
        own = rank // 2
        others = [j for j in order[max(0, 2 * own - 2) : 2 * own + 2] if j < i]
        if not others:
            assert_close(o[i], values[i])
            continue
        scores = torch.stack([q[i] @ q[j] / q[j].norm() / math.sqrt(6) for j in others])
        assert_close(o[i], scores.softmax(0) @ values[others])


@every_rounds
def test_one_chunk_equals_softmax_attention_to_earlier_positions(rounds: int) -> None:
    qk, v, rotations = inputs(rounds, 9)
    scores = torch.einsum("bthk,bshk->bhts", qk, qk / qk.norm(dim=-1, keepdim=True)) / 6**0.5
    later = torch.ones(9, 9, dtype=torch.bool).triu()
    later[0, 0] = False  # the first position attends to itself
    expected = torch.einsum("bhts,bshv->bthv", scores.masked_fill(later, -torch.inf).softmax(-1), v)
    assert_close(lsh_attention(qk, v, rotations, 16), expected)


@every_rounds
def test_one_non_causal_chunk_attends_to_all_other_positions(rounds: int) -> None:
    qk, v, rotations = inputs(rounds, 9)
    scores = torch.einsum("bthk,bshk->bhts", qk, qk / qk.norm(dim=-1, keepdim=True)) / 6**0.5
    scores = scores.masked_fill(torch.eye(9, dtype=torch.bool), -torch.inf)
    expected = torch.einsum("bhts,bshv->bthv", scores.softmax(-1), v)
    assert_close(lsh_attention(qk, v, rotations, 16, causal=False), expected)


@pytest.mark.parametrize("causal", [True, False])
@every_combine
@every_rounds
def test_positions_after_the_end_have_no_effect(
    rounds: int, combine: CombineRounds, causal: bool
) -> None:
    qk, v, rotations = inputs(rounds, 40)
    lengths = torch.tensor([40, 21])
    o = lsh_attention(qk, v, rotations, 8, lengths, causal, combine)
    assert o.isfinite().all()
    alone = lsh_attention(qk[1:, :21], v[1:, :21], rotations, 8, causal=causal, combine=combine)
    assert_close(o[1:, :21], alone)
    after = torch.arange(40) >= lengths.unsqueeze(1)
    other = after[..., None, None].double()
    again = lsh_attention(qk + other, v + other, rotations, 8, lengths, causal, combine)
    assert torch.equal(again[0], o[0])
    assert torch.equal(again[1, :21], o[1, :21])


@every_combine
@every_rounds
def test_later_values_have_no_weight(rounds: int, combine: CombineRounds) -> None:
    qk, v, rotations = inputs(rounds, 40)
    o = lsh_attention(qk, v, rotations, 8, combine=combine)
    changed = v.clone()
    changed[:, 17] += 1
    after = lsh_attention(qk, changed, rotations, 8, combine=combine)
    difference = (after - o).abs().amax((0, 2, 3))
    assert (difference[:17] == 0).all()
    assert (difference[17:] > 0).any()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("rounds", "masked"), [(1, False), (4, False), (1, True)])
def test_matches_the_authors_implementation(
    rounds: int, masked: bool, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare with fast-transformers, with the same rotations.

    It averages the rounds. A position attends to itself, unless ``masked``, which equals ``union``
    of one round. Its sort is not stable, so within a bucket its order is arbitrary; it is made
    stable here, which sorts by time.
    """
    monkeypatch.setattr(torch, "argsort", functools.partial(torch.argsort, stable=True))
    reformer = pytest.importorskip("fast_transformers.attention.reformer_attention")
    from fast_transformers.masking import FullMask, LengthMask, TriangularCausalMask

    B, T, H, K, chunk, bits = 2, 96, 3, 8, 12, 4
    qk, v = torch.randn(2, B, T, H, K, dtype=torch.float64)
    module = reformer.ReformerAttention(chunk, bits, rounds, masked, attention_dropout=0.0)
    mask, lengths = (
        TriangularCausalMask(T) if causal else FullMask(T),
        LengthMask(torch.full((B,), T)),
    )
    torch.manual_seed(5)
    expected = module(qk, qk, v, mask, lengths, lengths)
    torch.manual_seed(5)  # it draws the same planes for all heads, round by round
    planes = torch.stack([torch.empty(bits, K, dtype=qk.dtype).normal_() for _ in range(rounds)])
    rotations = planes.transpose(1, 2).unsqueeze(1).expand(rounds, H, K, bits)
    combine: CombineRounds = "union" if masked else "mean"
    o = lsh_attention(qk, v, rotations, chunk, causal=causal, combine=combine)
    assert_close(o, expected)
    other = lsh_attention(
        qk, v, rotations, chunk, causal=causal, combine="mean" if masked else "union"
    )
    assert not torch.allclose(other, expected, atol=1e-3)


def test_matches_the_transformers_reformer() -> None:
    """Compare all positions but the first chunk, which attends to the last one in theirs.

    One round, because theirs counts a pair once per round.
    """
    rounds = 1
    reformer = pytest.importorskip("transformers.models.reformer.modeling_reformer")
    from transformers import ReformerConfig

    B, T, H, K, chunk, buckets = 2, 256, 2, 8, 32, 16
    config = ReformerConfig(
        hidden_size=H * K, num_attention_heads=H, attention_head_size=K, num_hashes=rounds,
        num_buckets=buckets, lsh_attn_chunk_length=chunk, lsh_num_chunks_before=1,
        lsh_num_chunks_after=0, is_decoder=True, hash_seed=5,
        lsh_attention_probs_dropout_prob=0.0, attn_layers=["lsh"],
    )  # fmt: skip
    theirs = reformer.LSHSelfAttention(config).double().eval()
    with torch.no_grad():
        x = torch.randn(B, T, H * K, dtype=torch.float64)
        expected = theirs(x).hidden_states.view(B, T, H, K)
        qk, v = theirs.query_key(x).view(B, T, H, K), theirs.value(x).view(B, T, H, K)
        torch.manual_seed(5)
        rotations = torch.randn(H, K, rounds, buckets // 2, dtype=x.dtype).permute(2, 0, 1, 3)
        o = lsh_attention(qk * math.sqrt(K), v, rotations, chunk)  # they do not divide by √K
    first = torch.zeros(B, T, H, dtype=torch.bool)
    for order in lsh_order(qk, rotations).unbind(1):
        first.scatter_(1, order[:, :, :chunk].transpose(1, 2), value=True)
    assert 0.3 < (~first).float().mean() < 1
    assert_close(o[~first], expected[~first], torch.float32)  # theirs adds 1e-6 to norms


def test_invalid_shapes_raise() -> None:
    qk, v, rotations = inputs(1, 5)
    for form in (lsh_attention, naive_lsh_attention):
        with pytest.raises(ValueError, match="v must be"):
            form(qk, v[:, 1:], rotations)
        with pytest.raises(ValueError, match=r"rotations must be \[R, 2, 6, N / 2\]"):
            form(qk, v, rotations[:, :1])
        with pytest.raises(ValueError, match=r"lengths must be \[2\], not \[1\]"):
            form(qk, v, rotations, lengths=torch.tensor([5]))
        with pytest.raises(ValueError, match="chunk must be at least 1, not 0"):
            form(qk, v, rotations, 0)
        with pytest.raises(ValueError, match="combine must be 'union' or 'mean', not 'sum'"):
            form(qk, v, rotations, combine="sum")  # type: ignore[arg-type]
