"""Tests of figure 1: time and memory by sequence length."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from scanline.model.paper import peers, scaling
from scanline.model.paper.scaling import peak_bytes, slope
from tests.conftest import assert_close
from tests.model.paper.fixtures import CPU, SMALL


def test_peak_bytes_is_maximum_of_allocated_memory() -> None:
    def run() -> None:
        for _ in range(3):
            first = torch.zeros(250_000)
            second = first + 1
            del first, second

    assert peak_bytes(run, CPU) == pytest.approx(2_000_000, rel=0.01)


@pytest.mark.parametrize("kind", scaling.KINDS)
def test_every_attention_kind_is_causal_and_measured(kind: str) -> None:
    attend = scaling.attention(kind, 64, SMALL)
    assert attend is not None
    q, k, v = torch.randn(3, 1, 64, 2, 8)
    changed = v.clone()
    changed[:, 40] += 1
    difference = (attend(q, k, changed) - attend(q, k, v)).abs().amax((0, 2, 3))
    assert (difference[:40] == 0).all()
    assert difference[40:].max() > 0
    row = scaling.measure(kind, 64, SMALL, None, CPU)
    assert row["seconds"] > 0
    assert row["bytes"] > 4 * 64 * 2 * 8


def test_scaling_stops_at_time_or_memory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = {"seconds": 1e-3, "bytes": 10}
    limit = replace(SMALL, max_seconds=2.0)
    assert "seconds" in scaling.measure("linear", 32, limit, quick, CPU)
    slow = scaling.measure("linear", 32, limit, quick | {"seconds": 1.5}, CPU)
    assert slow == {"kind": "linear", "length": 32, "stopped": "2 s per pass"}
    assert scaling.measure("linear", 64, limit, slow, CPU)["stopped"] == "2 s per pass"
    monkeypatch.setattr(scaling, "free_memory", lambda: 1000)
    large = scaling.measure("linear", 32, limit, quick | {"bytes": 200}, CPU)
    assert large["stopped"] == "memory"


def test_slope_is_fitted_to_four_longest_lengths() -> None:
    rows = [{"length": n, "seconds": 3 * n**1.7} for n in (128, 256, 512, 1024)]
    first = {"length": 64, "seconds": 1e9}
    last = {"length": 2048, "stopped": "memory"}
    power = slope([first, *rows, last], "seconds")
    assert power == pytest.approx(1.7)
    assert slope(rows[:2], "seconds") is None


def test_peer_attention_equals_ours() -> None:
    pytest.importorskip("fast_transformers")
    theirs = peers.attentions(48)
    q, k, v = torch.randn(3, 1, 48, 2, 8)
    for kind in ("linear", "softmax"):
        mine = scaling.attention(kind, 48, SMALL)
        assert mine is not None
        assert_close(mine(q, k, v), theirs[kind](q, k, v))


@pytest.mark.parametrize("length", [16, 32, 48])
@pytest.mark.parametrize("kind", ["lsh-1", "lsh-8"])
def test_peer_lsh_attention_is_causal_at_any_length(kind: str, length: int) -> None:
    """Rows are padded to whole chunks; one chunk is attention to all earlier positions."""
    pytest.importorskip("fast_transformers")
    attend = peers.attentions(length)[kind]
    leaves = [torch.randn(2, length, 2, 8, requires_grad=True) for _ in range(3)]
    q, _, v = leaves
    o = attend(*leaves)
    scores = torch.einsum("bthk,bshk->bhts", q, q / q.norm(dim=-1, keepdim=True)) / 8**0.5
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    weights = scores.masked_fill(later, -torch.inf).softmax(-1)
    if length <= peers.CHUNK:
        assert_close(o, torch.einsum("bhts,bshv->bthv", weights, v))
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(o.sum(), (q, v)))
    changed = v.detach().clone()
    changed[:, length - 3] += 1
    torch.manual_seed(1)
    before = attend(*leaves)
    torch.manual_seed(1)
    difference = (attend(q, q, changed) - before).abs().amax((0, 2, 3))
    assert (difference[: length - 3] == 0).all()
    assert difference[length - 3 :].max() > 0
