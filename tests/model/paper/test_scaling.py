"""Tests of figure 1: time and memory by sequence length."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from scanline.kernels.ops import attention as ops
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
    q, k, v = torch.randn(3, 1, 64, 2, 8)
    changed = v.clone()
    changed[:, 40] += 1
    difference = (attend(q, k, changed) - attend(q, k, v)).abs().amax((0, 2, 3))
    assert (difference[:40] == 0).all()
    assert difference[40:].max() > 0
    row = scaling.measure(kind, 64, SMALL, [], CPU)
    assert min(row["seconds"]) > 0
    assert row["bytes"] > 4 * 64 * 2 * 8
    kernels = ops.packed_implementation(torch.zeros(1, 64, 2, 8), "elu")
    names = {"softmax": "PyTorch's fused kernel"}
    if kernels != "PyTorch":
        names["linear"] = kernels
    assert row["implementation"] == names.get(kind, "plain PyTorch")


def test_batch_falls_with_the_length_and_rows_are_per_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert [SMALL.batch(n) for n in (8, 16, 32, 64)] == [4, 2, 1, 1]
    monkeypatch.setattr(scaling, "timings", lambda run, device, repeats: [3.0, 5.0])
    monkeypatch.setattr(scaling, "peak_bytes", lambda run, device: 100)
    row = scaling.measure("linear", 16, SMALL, [], CPU)
    assert (row["batch"], row["seconds"], row["bytes"]) == (2, [1.5, 2.5], 50)


def test_plain_linear_attention_runs_neither_cpp_nor_triton(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    q, k, v = torch.randn(3, 1, 64, 2, 8)
    plain, fast = (scaling.attention(kind, 64, SMALL) for kind in ("linear-pytorch", "linear"))
    assert_close(plain(q, k, v), fast(q, k, v))
    monkeypatch.setattr(ops, "attention", None)
    monkeypatch.setattr(ops, "uses_triton", lambda *_: False)
    assert plain(q, k, v).isfinite().all()


def test_scaling_stops_before_time_or_memory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next length is predicted from the growth between the last two."""
    limit = replace(SMALL, max_seconds=2.0)

    def row(seconds: float, size: int = 10) -> dict[str, Any]:
        return {"seconds": [seconds], "bytes": size, "batch": 1}

    def measure(length: int, *earlier: dict[str, Any]) -> dict[str, Any]:
        return scaling.measure("linear", length, limit, [*earlier], CPU)

    assert "seconds" in measure(64, row(0.3), row(0.7))  # predicted: 1.6 s
    slow = measure(64, row(0.2), row(0.7))  # predicted: 2.5 s
    assert slow == {"kind": "linear", "length": 64, "batch": 1, "stopped": "2 s per pass"}
    assert "seconds" in measure(64, row(0.9))
    assert measure(64, row(1.1))["stopped"] == "2 s per pass"
    assert measure(128, slow)["stopped"] == "2 s per pass"
    monkeypatch.setattr(scaling, "free_memory", lambda: 2000)
    assert "seconds" in measure(64, row(0.1, 175), row(0.1, 350))
    assert measure(64, row(0.1, 150), row(0.1, 350))["stopped"] == "memory"

    def fail(*arguments: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(scaling, "peak_bytes", fail)
    assert measure(64)["stopped"] == "memory"


def test_slope_is_fitted_to_four_longest_lengths() -> None:
    rows = [{"length": n, "seconds": [1.0, 3 * n**1.7, 1e12]} for n in (128, 256, 512, 1024)]
    first = {"length": 64, "seconds": [1e9]}
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
