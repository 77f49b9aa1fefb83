"""What stands between two products, in Triton, against its definition in float64."""

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


def compare(target: Target, tensors: list[Tensor], convolved: bool, stride: int = 3) -> None:
    """Compare the sum, what is seen and all gradients: of x, added, bias, norm and taps."""
    results = []
    for exact in (True, False):
        given = leaves(tensors, torch.float64 if exact else None)
        x, added, bias, weight, shift, *conv = given
        norm, taps = (weight, shift), conv[0] if convolved else None
        if exact:
            total, y = naive_residual(
                x, LinearOutput(added, bias), norm, taps, COLUMNS, stride, 1e-5
            )
        else:
            total, y = triton_residual(
                x, added, bias, norm, taps, COLUMNS, stride, 1e-5, target.dtype
            )
            assert y.dtype == target.dtype
        generator = torch.Generator().manual_seed(1)
        loss = total.new_zeros((), dtype=torch.float64)
        for output in (total, y):
            weights = torch.randn(output.shape, generator=generator).to(output.device)
            loss = loss + (weights * output.double()).sum()
        wanted = given if convolved else given[:-1]
        gradients = torch.autograd.grad(loss, wanted)
        assert [g.dtype for g in gradients] == [x.dtype for x in wanted]
        results.append([total, y, *gradients])
    for n, (expected, actual) in enumerate(zip(*results, strict=True)):
        scale = expected.abs().max()
        assert_close(actual / scale, expected / scale, torch.float32 if n == 0 else target.dtype)


def some(target: Target, steps: int, D: int, images: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(steps)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(target.device)

    x, added = normal(images, steps, D), normal(images, steps, D).to(target.dtype)
    return [x, added, *normal(3, D).unbind(), normal(5, D)]


@pytest.mark.parametrize("convolved", [True, False])
@pytest.mark.parametrize("steps", [4 * COLUMNS, 4 * COLUMNS - 5, 3, 1])
def test_equals_the_definition_with_gradients(target: Target, steps: int, convolved: bool) -> None:
    compare(target, some(target, steps, 128), convolved)


@pytest.mark.parametrize("D", [4, 20, 72, 700])
def test_any_width(target: Target, D: int) -> None:
    """Where fewer positions fit a tile, and where features are no power of two."""
    compare(target, some(target, 20, D), convolved=True, stride=1)


def test_programs_that_take_several_tiles(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images end within a tile, and the last program has fewer."""
    monkeypatch.setattr("scanline.kernels.cuda.residual.PROGRAMS", 4)
    compare(target, some(target, 20, 128, images=3), convolved=True)


@pytest.mark.parametrize("through", [0, 1])
def test_gradients_through_one_output_alone(target: Target, through: int) -> None:
    x, added, _, weight, shift, taps = leaves(some(target, 12, 16))
    exact = leaves([x, added], torch.float64)
    ours = triton_residual(x, added, None, (weight, shift), taps, COLUMNS, 1, 1e-5, target.dtype)
    norm = (weight.double(), shift.double())
    theirs = naive_residual(exact[0], LinearOutput(exact[1]), norm, taps.double(), COLUMNS, 1, 1e-5)
    mine = torch.autograd.grad(ours[through].double().square().sum(), (x, added))
    other = torch.autograd.grad(theirs[through].square().sum(), exact)
    for one, expected in zip(mine, other, strict=True):
        assert_close(one / expected.abs().max(), expected / expected.abs().max(), target.dtype)


def test_the_first_stream_has_nothing_to_add(target: Target) -> None:
    tensors = some(target, 12, 16)
    x, weight, shift, taps = leaves([tensors[0], *tensors[3:]])
    total, y = triton_residual(x, None, None, (weight, shift), taps, COLUMNS, 3, 1e-5, x.dtype)
    assert total is x
    exact = leaves([x, weight, shift, taps], torch.float64)
    _, expected = naive_residual(exact[0], None, (exact[1], exact[2]), exact[3], COLUMNS, 3, 1e-5)
    mine = torch.autograd.grad(y.double().square().sum(), (x, weight, shift, taps))
    theirs = torch.autograd.grad(expected.square().sum(), exact)
    for one, other in zip((y, *mine), (expected, *theirs), strict=True):
        assert_close(one / other.abs().max(), other / other.abs().max())


def test_no_image_is_no_launch(target: Target) -> None:
    x, added, _, weight, shift, taps = leaves(some(target, 5, 16, images=0))
    total, y = triton_residual(x, added, None, (weight, shift), taps, COLUMNS, 1, 1e-5, x.dtype)
    gradients = torch.autograd.grad(total.sum() + y.sum(), (x, weight, taps))
    assert [[*one.shape] for one in gradients] == [[0, 5, 16], [16], [5, 16]]
    assert not gradients[2].any()


class TestUsed:
    """A network's blocks take the kernels on a device, as autocast says."""

    pytestmark = gpu

    @pytest.mark.parametrize("bf16", [True, False])
    def test_on_a_device(self, bf16: bool) -> None:
        dtype = torch.bfloat16 if bf16 else torch.float32
        x, added, bias, *norm, taps = some(Target("cuda", dtype), 12, 16)
        with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
            ours = residual(x, LinearOutput(added, bias), (norm[0], norm[1]), taps, COLUMNS)
        theirs = triton_residual(
            x, added, bias, (norm[0], norm[1]), taps, COLUMNS, 1, 1e-5, dtype
        )  # fmt: skip
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(("rows", "columns"), [(1, 5), (70, 64), (97, 130), (0, 3)])
def test_columns_are_summed(
    target: Target, rows: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scanline.kernels.cuda.linear.PROGRAMS", 3)
    x = torch.randn(rows, columns).to(target.device, target.dtype)
    sums = column_sums(x)
    assert sums.dtype == torch.float32
    assert_close(sums, x.double().sum(0), torch.float32)


def test_a_linear_map_and_its_gradients(target: Target) -> None:
    tensors = [torch.randn(*shape).to(target.device) for shape in [(2, 9, 16), (24, 16), (24,)]]
    given, exact = leaves(tensors), leaves(tensors, torch.float64)
    x, weight, bias = given
    y, expected = triton_linear(x, weight, bias, target.dtype), torch.nn.functional.linear(*exact)
    assert y.dtype == target.dtype
    mine = torch.autograd.grad(y.double().square().sum(), given)
    theirs = torch.autograd.grad(expected.square().sum(), exact)
    for one, other in zip((y, *mine), (expected, *theirs), strict=True):
        assert_close(one / other.abs().max(), other / other.abs().max(), target.dtype)
    assert all(one.dtype == torch.float32 for one in mine)
    y = triton_linear(x, weight, bias, target.dtype)
    with pytest.raises(RuntimeError, match="double backward is not supported"):
        torch.autograd.grad(y.square().sum(), given, create_graph=True)
