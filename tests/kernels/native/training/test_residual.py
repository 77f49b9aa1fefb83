"""Residual addition, norm, convolution and GELU in C++ against their definitions in float64."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from scanline.kernels.native.training import library
from scanline.kernels.ops.linear import (
    LinearOutput,
    linear_deferred_bias,
    linear_gelu,
    with_bias,
)
from scanline.kernels.ops.residual import naive_residual, residual
from tests.conftest import assert_close

COLUMNS = 9


def leaves(*tensors: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return the tensors with gradients required, and the same in float64."""
    exact = [x.detach().double().requires_grad_() for x in tensors]
    return [x.requires_grad_() for x in tensors], exact


def assert_gradients_close(
    outputs: Sequence[Tensor], given: list[Tensor],
    expected: Sequence[Tensor], exact: list[Tensor], dtype: torch.dtype,
) -> None:  # fmt: skip
    weights = [torch.randn_like(x) for x in outputs]
    mine = torch.autograd.grad(outputs, given, weights)
    theirs = torch.autograd.grad(expected, exact, [w.double() for w in weights])
    for one, other in zip(mine, theirs, strict=True):
        scale = other.abs().max()
        assert_close(one / scale, other / scale, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("convolved", [True, False])
@pytest.mark.parametrize("steps", [4 * COLUMNS, 4 * COLUMNS - 5, 3, 1])
def test_outputs_and_gradients_match_the_definition(
    steps: int, convolved: bool, dtype: torch.dtype, isa: str
) -> None:
    D = 3 * library.require_library().lanes
    given, exact = leaves(
        torch.randn(2, steps, D), torch.randn(2, steps, D).to(dtype), *torch.randn(3, D).unbind(),
        torch.randn(5, D),
    )  # fmt: skip
    given, exact = given[: 5 + convolved], exact[: 5 + convolved]

    def run(x: Tensor, added: Tensor, bias: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
        norm, conv = (weights[0], weights[1]), weights[2] if convolved else None
        if x.dtype == torch.float64:
            return naive_residual(x, LinearOutput(added, bias), norm, conv, COLUMNS, 1e-5)
        return residual(x, LinearOutput(added, bias), norm, conv, COLUMNS)

    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        total, y = run(*given)
    expected = run(*exact)
    assert y.dtype == dtype
    assert_close(total, expected[0])
    assert_close(y, expected[1], dtype)
    assert_gradients_close((total, y), given, expected, exact, dtype)


def test_nothing_to_add(isa: str) -> None:
    D = library.require_library().lanes
    given, exact = leaves(torch.randn(2, 7, D), *torch.randn(2, D).unbind(), torch.randn(5, D))
    total, y = residual(given[0], None, (given[1], given[2]), given[3], COLUMNS)
    assert total is given[0]
    expected = naive_residual(exact[0], None, (exact[1], exact[2]), exact[3], COLUMNS, 1e-5)
    assert_gradients_close((total, y), given, expected, exact, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gelu_and_gradient_match_the_definition(dtype: torch.dtype, isa: str) -> None:
    """More than 64 rows, with large positive and negative inputs."""
    D, features = 2 * library.require_library().lanes, 3 * library.require_library().lanes
    given, exact = leaves(
        4 * torch.randn(3, 30, D), torch.randn(features, D) / 4, torch.randn(features)
    )
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        y = linear_gelu(*given)
    expected = F.gelu(F.linear(*exact))
    assert_close(y / expected.abs().max(), expected / expected.abs().max(), dtype)
    assert_gradients_close([y], given, [expected], exact, dtype)


def test_deferred_bias(isa: str) -> None:
    lanes = library.require_library().lanes
    x, weight, bias = torch.randn(2, 3, lanes), torch.randn(lanes, lanes), torch.randn(lanes)
    product = linear_deferred_bias(x, weight, bias)
    assert product.bias is bias
    assert_close(with_bias(product), F.linear(x.double(), weight.double(), bias.double()))
    other = linear_deferred_bias(x.double(), weight.double(), bias.double())
    assert other.bias is None
    assert_close(with_bias(other), F.linear(x.double(), weight.double(), bias.double()))


def test_strided_tensors(isa: str) -> None:
    D = library.require_library().lanes
    wide = torch.randn(7, 2, 2 * D)
    given, exact = leaves(wide, torch.randn(D, 7))

    def run(wide: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        x, (weight, bias, *taps) = wide.transpose(0, 1)[..., ::2], weights.t()
        norm, conv = (weight, bias), torch.stack(taps, 1).t()
        if x.dtype == torch.float64:
            return naive_residual(x, None, norm, conv, COLUMNS, 1e-5)
        return residual(x, None, norm, conv, COLUMNS)

    assert_gradients_close(run(*given), given, run(*exact), exact, torch.float32)


def test_gradient_of_the_sum_alone(isa: str) -> None:
    D = library.require_library().lanes
    given, _ = leaves(torch.randn(2, 5, D), torch.randn(2, 5, D), *torch.randn(3, D).unbind())
    x, added, bias, *norm = given
    total, _ = residual(x, LinearOutput(added, bias), (norm[0], norm[1]))
    grads = torch.autograd.grad(total.sum(), given)
    ones = torch.ones(2, 5, D)
    wanted = (ones, ones, 10 * ones[0, 0], 0 * ones[0, 0], 0 * ones[0, 0])
    for grad, expected in zip(grads, wanted, strict=True):
        assert_close(grad, expected.double())


def test_threads_share_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer images than threads the results are the same."""
    found = []
    for threads in (1, 5):
        chosen = library.TrainingLibrary(threads)
        monkeypatch.setattr(library, "get_library", lambda chosen=chosen: chosen)
        torch.manual_seed(0)
        D = chosen.lanes
        x, added, conv = torch.randn(2, 40, D), torch.randn(2, 40, D), torch.randn(5, D)
        norm, bias = (torch.randn(D), torch.randn(D)), torch.randn(D)
        found.append(residual(x, LinearOutput(added, bias), norm, conv, COLUMNS))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_gelu_vanishes_far_below_zero(isa: str) -> None:
    lanes = library.require_library().lanes
    x = torch.tensor([-5.0, -20.0, -1000.0, 1000.0]).repeat(lanes, lanes // 4).bfloat16()
    x.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = linear_gelu(x, torch.eye(lanes), torch.zeros(lanes))
    (grad,) = torch.autograd.grad(y.sum(), x)
    for row in (y[0], grad[0]):
        assert row[:3].abs().max() < 2e-6
    assert y[0, 3] == 1000
    assert grad[0, 3] == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_unsupported_dtypes_use_torch(dtype: torch.dtype, isa: str) -> None:
    lanes = library.require_library().lanes
    x, weight, bias = torch.randn(5, lanes), torch.randn(lanes, lanes), torch.randn(lanes)
    if dtype == torch.float64:
        y = linear_gelu(x.double(), weight.double(), bias.double())
    else:
        with torch.autocast("cpu", dtype):
            y = linear_gelu(x, weight, bias)
    assert y.dtype == dtype
    expected = F.gelu(F.linear(x.double(), weight.double(), bias.double()))
    torch.testing.assert_close(y.double(), expected, rtol=1e-2, atol=1e-2)


def test_invalid_convolution_raises() -> None:
    x, norm = torch.randn(1, 9, 16), (torch.ones(16), torch.zeros(16))
    with pytest.raises(ValueError, match="columns must be at least 2, not 0"):
        residual(x, None, norm, torch.randn(5, 16))
    with pytest.raises(ValueError, match=r"weight must be \[5, 16\]"):
        residual(x, None, norm, torch.randn(4, 16), columns=3)


def test_denormals_are_kept_by_every_thread() -> None:
    """Also by the caller's, which takes a part of the work that depends on the timing."""
    x = torch.full((64, 256, 64), 1e-40)
    affine = torch.ones(64), torch.zeros(64)

    def total() -> Tensor:
        return residual(x, LinearOutput(x, torch.zeros(64)), affine, None, COLUMNS)[0]

    expected = total()
    assert (expected == 2 * x).all()
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush denormals")
    try:
        seen = total()
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(seen, expected)
