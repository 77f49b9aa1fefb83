"""Tests of the fused residual connection and of the linear layer, against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from scanline.kernels.cuda.linear import column_sums, triton_linear
from scanline.kernels.cuda.residual import triton_residual
from scanline.kernels.ops.linear import LinearOutput
from scanline.kernels.ops.residual import naive_residual, residual
from tests.conftest import assert_close
from tests.triton.fixtures import gpu
from tests.triton.targets import Target, leaves

COLUMNS = 9


def compare(target: Target, tensors: list[Tensor], convolved: bool) -> None:
    """Compare the sum, the output and all gradients with the definition."""
    results = []
    for exact in (True, False):
        inputs = leaves(tensors, torch.float64 if exact else None)
        x, added, bias, weight, shift, *conv = inputs
        norm, taps = (weight, shift), conv[0] if convolved else None
        if exact:
            total, y = naive_residual(x, LinearOutput(added, bias), norm, taps, COLUMNS, 1e-5)
        else:
            total, y = triton_residual(x, added, bias, norm, taps, COLUMNS, 1e-5, target.dtype)
            assert y.dtype == target.dtype
        generator = torch.Generator().manual_seed(1)
        loss = total.new_zeros((), dtype=torch.float64)
        for output in (total, y):
            weights = torch.randn(output.shape, generator=generator).to(output.device)
            loss = loss + (weights * output.double()).sum()
        used = inputs if convolved else inputs[:-1]
        gradients = torch.autograd.grad(loss, used)
        assert [g.dtype for g in gradients] == [x.dtype for x in used]
        results.append([total, y, *gradients])
    for n, (expected, actual) in enumerate(zip(*results, strict=True)):
        scale = expected.abs().max()
        assert_close(actual / scale, expected / scale, torch.float32 if n == 0 else target.dtype)


def random_tensors(target: Target, steps: int, D: int, images: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(steps)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(target.device)

    x, added = normal(images, steps, D), normal(images, steps, D).to(target.dtype)
    return [x, added, *normal(3, D).unbind(), normal(5, D)]


@pytest.mark.parametrize(
    ("steps", "convolved"),
    [(4 * COLUMNS, True), (4 * COLUMNS - 5, True), (3, True), (1, True), (31, False)],
)
def test_equals_definition_with_gradients(target: Target, steps: int, convolved: bool) -> None:
    compare(target, random_tensors(target, steps, 128), convolved)


@pytest.mark.parametrize("D", [4, 20, 72, 700])
def test_any_width(target: Target, D: int) -> None:
    """Widths that change the positions per tile, or are no power of two."""
    compare(target, random_tensors(target, 20, D), convolved=True)


def test_several_tiles_per_program(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images end within a tile, and the last program has fewer tiles."""
    monkeypatch.setattr("scanline.kernels.cuda.residual.PROGRAMS", 4)
    compare(target, random_tensors(target, 20, 128, images=3), convolved=True)


@pytest.mark.parametrize("through", [0, 1])
def test_gradients_through_a_single_output(target: Target, through: int) -> None:
    x, added, _, weight, shift, taps = leaves(random_tensors(target, 12, 16))
    exact = leaves([x, added], torch.float64)
    ours = triton_residual(x, added, None, (weight, shift), taps, COLUMNS, 1e-5, target.dtype)
    norm = (weight.double(), shift.double())
    theirs = naive_residual(exact[0], LinearOutput(exact[1]), norm, taps.double(), COLUMNS, 1e-5)
    mine = torch.autograd.grad(ours[through].double().square().sum(), (x, added))
    other = torch.autograd.grad(theirs[through].square().sum(), exact)
    for one, expected in zip(mine, other, strict=True):
        assert_close(one / expected.abs().max(), expected / expected.abs().max(), target.dtype)


def test_first_layer_has_nothing_to_add(target: Target) -> None:
    tensors = random_tensors(target, 12, 16)
    x, weight, shift, taps = leaves([tensors[0], *tensors[3:]])
    total, y = triton_residual(x, None, None, (weight, shift), taps, COLUMNS, 1e-5, x.dtype)
    assert total is x
    exact = leaves([x, weight, shift, taps], torch.float64)
    _, expected = naive_residual(exact[0], None, (exact[1], exact[2]), exact[3], COLUMNS, 1e-5)
    mine = torch.autograd.grad(y.double().square().sum(), (x, weight, shift, taps))
    theirs = torch.autograd.grad(expected.square().sum(), exact)
    for one, other in zip((y, *mine), (expected, *theirs), strict=True):
        assert_close(one / other.abs().max(), other / other.abs().max())


def test_empty_batch(target: Target) -> None:
    x, added, _, weight, shift, taps = leaves(random_tensors(target, 5, 16, images=0))
    total, y = triton_residual(x, added, None, (weight, shift), taps, COLUMNS, 1e-5, x.dtype)
    gradients = torch.autograd.grad(total.sum() + y.sum(), (x, weight, taps))
    assert [[*one.shape] for one in gradients] == [[0, 5, 16], [16], [5, 16]]
    assert not gradients[2].any()


class TestDispatch:
    pytestmark = gpu

    @pytest.mark.parametrize("bf16", [True, False])
    def test_residual_uses_the_kernels_on_a_gpu(self, bf16: bool) -> None:
        dtype = torch.bfloat16 if bf16 else torch.float32
        x, added, bias, *norm, taps = random_tensors(Target("cuda", dtype), 12, 16)
        with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
            ours = residual(x, LinearOutput(added, bias), (norm[0], norm[1]), taps, COLUMNS)
        theirs = triton_residual(
            x, added, bias, (norm[0], norm[1]), taps, COLUMNS, 1e-5, dtype
        )  # fmt: skip
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(("rows", "columns"), [(1, 5), (70, 64), (97, 130), (0, 3)])
def test_column_sums(
    target: Target, rows: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scanline.kernels.cuda.linear.PROGRAMS", 3)
    x = torch.randn(rows, columns).to(target.device, target.dtype)
    sums = column_sums(x)
    assert sums.dtype == torch.float32
    assert_close(sums, x.double().sum(0), torch.float32)


def test_linear_layer_with_gradients(target: Target) -> None:
    tensors = [torch.randn(*shape).to(target.device) for shape in [(2, 9, 16), (24, 16), (24,)]]
    inputs, exact = leaves(tensors), leaves(tensors, torch.float64)
    x, weight, bias = inputs
    y, expected = triton_linear(x, weight, bias, target.dtype), torch.nn.functional.linear(*exact)
    assert y.dtype == target.dtype
    mine = torch.autograd.grad(y.double().square().sum(), inputs)
    theirs = torch.autograd.grad(expected.square().sum(), exact)
    for one, other in zip((y, *mine), (expected, *theirs), strict=True):
        assert_close(one / other.abs().max(), other / other.abs().max(), target.dtype)
    assert all(one.dtype == torch.float32 for one in mine)
    y = triton_linear(x, weight, bias, target.dtype)
    with pytest.raises(RuntimeError, match="double backward is not supported"):
        torch.autograd.grad(y.square().sum(), inputs, create_graph=True)
