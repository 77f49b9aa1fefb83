"""The maps in front of and behind the blocks: torch's own sums and products, and the way back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from scanline.kernels import maps
from scanline.kernels.maps import exact_linear, summed_rows
from scanline.kernels.native.training import passes
from tests.conftest import assert_close


def test_sums_of_a_tables_rows_and_their_gradient_are_torchs(isa: str) -> None:
    rows = 30
    table = torch.randn(rows, 3 * passes.ready().lanes, requires_grad=True)
    ids = torch.randint(0, rows, (50, 7))
    ids[:20] = rows - 1  # the same one many times, and the last
    sums, wanted = summed_rows(table, ids), F.embedding_bag(ids, table, mode="sum")
    assert torch.equal(sums, wanted)
    grad = torch.randn_like(sums)
    (mine,) = torch.autograd.grad(sums, table, grad)
    exact = table.detach().double().requires_grad_()
    (theirs,) = torch.autograd.grad(exact[ids].sum(1), exact, grad.double())
    assert_close(mine, theirs, torch.float32)


def test_the_gradient_of_a_table_does_not_depend_on_threads(
    monkeypatch: pytest.MonkeyPatch, isa: str
) -> None:
    table, ids = torch.randn(29, 64, requires_grad=True), torch.randint(0, 29, (200, 5))
    grad = torch.randn(200, 64)
    found: list[Tensor] = []
    for threads in (1, 3, 16):  # the last have pieces of one row, and some have none
        chosen = passes.Passes(threads, isa)
        monkeypatch.setattr(passes, "passes", lambda chosen=chosen: chosen)
        found += torch.autograd.grad(summed_rows(table, ids), table, grad)
    assert all(torch.equal(found[0], other) for other in found)


@pytest.mark.parametrize("outputs", [5, 40])
def test_an_exact_map_and_its_gradients_are_those_of_float64(outputs: int) -> None:
    given = [torch.randn(2, 9, 12), torch.randn(outputs, 12), torch.randn(outputs)]
    exact = [x.double().requires_grad_() for x in given]
    mine = [x.requires_grad_() for x in given]
    grad = torch.randn(2, 9, outputs)
    with torch.autocast("cpu", torch.bfloat16):
        y = exact_linear(*mine)
    wanted = exact_linear(*exact)
    assert y.dtype == torch.float32
    assert wanted.dtype == torch.float64
    assert_close(y, wanted, torch.float32)
    for one, other in zip(
        torch.autograd.grad(y, mine, grad),
        torch.autograd.grad(wanted, exact, grad.double()),
        strict=True,
    ):
        assert one.is_contiguous()
        assert_close(one, other, torch.float32)


def test_an_exact_map_of_what_wants_no_gradient_has_one_of_its_own() -> None:
    x, weight, bias = torch.randn(3, 4), torch.randn(6, 4), torch.randn(6)
    wants = [t.requires_grad_() for t in (weight, bias)]
    mine = torch.autograd.grad(exact_linear(x, weight, bias).square().sum(), wants)
    theirs = torch.autograd.grad(F.linear(x, weight, bias).square().sum(), wants)
    for one, other in zip(mine, theirs, strict=True):
        assert_close(one, other)


def test_an_exact_map_is_torchs_where_the_passes_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "_onednn_pays", lambda: True)
    given = [torch.randn(9, 12), torch.randn(5, 12), torch.randn(5)]
    mine = [x.requires_grad_() for x in given]
    with passes.off():
        plain = exact_linear(*mine)
    assert torch.equal(plain, F.linear(*mine))
    assert "Addmm" in type(plain.grad_fn).__name__
