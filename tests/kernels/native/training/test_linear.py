"""Linear maps against torch, and their gradients in C++ and oneDNN."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from scanline.kernels.native.training import library
from scanline.kernels.native.training.linear import weight_gradient
from scanline.kernels.ops import linear as linear_ops
from scanline.kernels.ops.linear import full_precision_linear, linear_without_bias
from tests.conftest import assert_close


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("rows", "outputs", "inputs"), [(1, 1, 1), (2, 7, 5), (515, 20, 100), (1100, 66, 131)]
)
def test_weight_gradient_matches_float64(
    rows: int, outputs: int, inputs: int, dtype: torch.dtype, isa: str
) -> None:
    """Sizes below a tile, above a block of rows, and not a multiple of the vector size."""
    grad, x = torch.randn(rows, outputs).to(dtype), torch.randn(rows, inputs).to(dtype)
    found = weight_gradient(grad, x)
    assert found.dtype == torch.float32
    wanted = grad.double().T @ x.double()
    scale = wanted.abs().max()
    assert_close(found / scale, wanted / scale, torch.float32)


def test_weight_gradient_does_not_depend_on_threads(
    monkeypatch: pytest.MonkeyPatch, isa: str
) -> None:
    grad, x = torch.randn(700, 29), torch.randn(700, 40)
    found: list[Tensor] = []
    for threads in (1, 3, 16):  # with 16 threads, some have no output
        chosen = library.TrainingLibrary(threads, isa)
        monkeypatch.setattr(library, "get_library", lambda chosen=chosen: chosen)
        found.append(weight_gradient(grad, x))
    assert all(torch.equal(found[0], other) for other in found)


def test_bfloat16_linear_matches_torch_up_to_rounding(
    monkeypatch: pytest.MonkeyPatch, isa: str
) -> None:
    monkeypatch.setattr(linear_ops, "_native_gradient_is_faster", lambda: True)
    given = [torch.randn(2, 300, 24), torch.randn(40, 24)]
    mine, theirs = ([x.clone().requires_grad_() for x in given] for _ in range(2))
    grad = torch.randn(2, 300, 40).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        y, wanted = linear_without_bias(*mine), F.linear(*theirs)
    assert type(y.grad_fn).__name__ == "_LinearBackward"
    assert torch.equal(y, wanted)
    grad_x, grad_weight = torch.autograd.grad(y, mine, grad)
    torch_grad_x, torch_grad_weight = torch.autograd.grad(wanted, theirs, grad)
    assert torch.equal(grad_x, torch_grad_x)
    assert grad_weight.dtype == torch.float32
    scale = grad_weight.abs().max()
    assert_close(grad_weight / scale, torch_grad_weight / scale, torch.bfloat16)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(linear_without_bias(*mine), y)
    assert torch.equal(linear_without_bias(*mine), F.linear(*mine))  # in float32


onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(),  # type: ignore[no-untyped-call]
    reason="this torch has no oneDNN",
)


@onednn
@pytest.mark.parametrize("outputs", [5, 40])
def test_full_precision_linear_matches_float64(
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
    assert "OnednnLinear" in type(y.grad_fn.next_functions[0][0]).__name__  # type: ignore[union-attr]
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
def test_gradients_of_the_weight_alone(monkeypatch: pytest.MonkeyPatch, isa: str) -> None:
    monkeypatch.setattr(linear_ops, "_onednn_is_faster", lambda: True)
    x, weight, bias = torch.randn(3, 4), torch.randn(6, 4), torch.randn(6)
    wants = [t.requires_grad_() for t in (weight, bias)]
    mine = torch.autograd.grad(full_precision_linear(x, weight, bias).square().sum(), wants)
    theirs = torch.autograd.grad(F.linear(x, weight, bias).square().sum(), wants)
    for one, other in zip(mine, theirs, strict=True):
        assert_close(one, other)


def test_disabled_library_uses_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_ops, "_onednn_is_faster", lambda: True)
    given = [torch.randn(9, 12), torch.randn(5, 12), torch.randn(5)]
    mine = [x.requires_grad_() for x in given]
    with library.disabled():
        plain = full_precision_linear(*mine)
    assert torch.equal(plain, F.linear(*mine))
    assert "Addmm" in type(plain.grad_fn).__name__
