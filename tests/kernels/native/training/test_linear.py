"""The maps in front of and behind the blocks: torch's own sums and products, and the way back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from scanline.kernels.native.training import library
from scanline.kernels.native.training.linear import weight_gradient
from scanline.kernels.ops import linear as linear_ops
from scanline.kernels.ops.embedding import embedding_sum
from scanline.kernels.ops.linear import full_precision_linear, linear_without_bias
from tests.conftest import assert_close


def test_sums_of_a_tables_rows_and_their_gradient_are_torchs(isa: str) -> None:
    rows = 30
    table = torch.randn(rows, 3 * library.require_library().lanes, requires_grad=True)
    ids = torch.randint(0, rows, (50, 7))
    ids[:20] = rows - 1  # the same one many times, and the last
    sums, wanted = embedding_sum(table, ids), F.embedding_bag(ids, table, mode="sum")
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
        chosen = library.TrainingLibrary(threads, isa)
        monkeypatch.setattr(library, "get_library", lambda chosen=chosen: chosen)
        found += torch.autograd.grad(embedding_sum(table, ids), table, grad)
    assert all(torch.equal(found[0], other) for other in found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("rows", "outputs", "inputs"), [(1, 1, 1), (2, 7, 5), (515, 20, 100), (1100, 66, 131)]
)
def test_a_weights_gradient_is_that_of_float64(
    rows: int, outputs: int, inputs: int, dtype: torch.dtype, isa: str
) -> None:
    """Of less than a tile, of more than a block of rows, and of whole vectors or not."""
    grad, x = torch.randn(rows, outputs).to(dtype), torch.randn(rows, inputs).to(dtype)
    found = weight_gradient(grad, x)
    assert found.dtype == torch.float32
    wanted = grad.double().T @ x.double()
    scale = wanted.abs().max()
    assert_close(found / scale, wanted / scale, torch.float32)


def test_a_weights_gradient_does_not_depend_on_threads(
    monkeypatch: pytest.MonkeyPatch, isa: str
) -> None:
    grad, x = torch.randn(700, 29), torch.randn(700, 40)
    found: list[Tensor] = []
    for threads in (1, 3, 16):  # of the last some have no output
        chosen = library.TrainingLibrary(threads, isa)
        monkeypatch.setattr(library, "get_library", lambda chosen=chosen: chosen)
        found.append(weight_gradient(grad, x))
    assert all(torch.equal(found[0], other) for other in found)


def test_a_map_in_bfloat16_is_torchs_but_for_its_weights_rounding(
    monkeypatch: pytest.MonkeyPatch, isa: str
) -> None:
    monkeypatch.setattr(linear_ops, "_native_gradient_is_faster", lambda: True)
    given = [torch.randn(2, 300, 24), torch.randn(40, 24)]
    mine, theirs = ([x.clone().requires_grad_() for x in given] for _ in range(2))
    grad = torch.randn(2, 300, 40).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        y, wanted = linear_without_bias(*mine), F.linear(*theirs)
    assert "linear" in type(y.grad_fn).__name__
    assert torch.equal(y, wanted)
    of_x, of_weight = torch.autograd.grad(y, mine, grad)
    of_their_x, of_their_weight = torch.autograd.grad(wanted, theirs, grad)
    assert torch.equal(of_x, of_their_x)
    assert of_weight.dtype == torch.float32
    scale = of_weight.abs().max()
    assert_close(of_weight / scale, of_their_weight / scale, torch.bfloat16)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(linear_without_bias(*mine), y)
    assert torch.equal(linear_without_bias(*mine), F.linear(*mine))  # in float32


onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(),  # type: ignore[no-untyped-call]
    reason="this torch has no oneDNN",
)


@onednn
@pytest.mark.parametrize("outputs", [5, 40])
def test_an_exact_map_and_its_gradients_are_those_of_float64(
    monkeypatch: pytest.MonkeyPatch, outputs: int, isa: str
) -> None:
    monkeypatch.setattr(linear_ops, "_onednn_is_faster", lambda: True)
    given = [torch.randn(2, 9, 12), torch.randn(outputs, 12), torch.randn(outputs)]
    exact = [x.double().requires_grad_() for x in given]
    mine = [x.requires_grad_() for x in given]
    grad = torch.randn(2, 9, outputs)
    with torch.autocast("cpu", torch.bfloat16):
        y = full_precision_linear(*mine)
    wanted = full_precision_linear(*exact)
    assert "onednn_linear" in type(y.grad_fn.next_functions[0][0]).__name__  # type: ignore[union-attr]
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


@onednn
def test_an_exact_map_of_what_wants_no_gradient_has_one_of_its_own(
    monkeypatch: pytest.MonkeyPatch, isa: str
) -> None:
    monkeypatch.setattr(linear_ops, "_onednn_is_faster", lambda: True)
    x, weight, bias = torch.randn(3, 4), torch.randn(6, 4), torch.randn(6)
    wants = [t.requires_grad_() for t in (weight, bias)]
    mine = torch.autograd.grad(full_precision_linear(x, weight, bias).square().sum(), wants)
    theirs = torch.autograd.grad(F.linear(x, weight, bias).square().sum(), wants)
    for one, other in zip(mine, theirs, strict=True):
        assert_close(one, other)


def test_an_exact_map_is_torchs_where_the_passes_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_ops, "_onednn_is_faster", lambda: True)
    given = [torch.randn(9, 12), torch.randn(5, 12), torch.randn(5)]
    mine = [x.requires_grad_() for x in given]
    with library.disabled():
        plain = full_precision_linear(*mine)
    assert torch.equal(plain, F.linear(*mine))
    assert "Addmm" in type(plain.grad_fn).__name__
