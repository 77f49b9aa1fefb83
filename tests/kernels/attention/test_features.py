"""Feature maps: their kernels, and attention with each of them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from scanline.kernels.attention.features import (
    DIRECTED_MAPS,
    feature_count,
    features,
    fourier_feature_map,
    inhomogeneous_feature_map,
    polynomial_feature_map,
    random_directions,
    random_feature_map,
    relu_feature_map,
)
from scanline.kernels.attention.naive import naive_linear_attention
from scanline.kernels.constants import FEATURE_MAPS
from scanline.kernels.ops.attention import linear_attention
from tests.conftest import assert_close

every_map = pytest.mark.parametrize("name", FEATURE_MAPS)


def qkv(T: int, K: int = 5, V: int = 7) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return random q, k, v and directions."""
    q, k = torch.randn(2, 2, T, 3, K, dtype=torch.float64)
    return q, k, torch.randn(2, T, 3, V, dtype=torch.float64), random_directions(K).double()


def similarity(name: str, q: Tensor, k: Tensor, directions: Tensor) -> Tensor:
    """Return the kernel φ(q)ᵀ φ(k) of all pairs by its formula: ``[B, H, T, T]``."""
    products = torch.einsum("bthk,bshk->bhts", q, k)
    if name == "polynomial":
        return products.square()
    if name == "inhomogeneous":
        return (products + 1).square()
    if name == "relu":
        return torch.einsum("bthk,bshk->bhts", q.clamp(min=0) + 1e-3, k.clamp(min=0) + 1e-3)
    if name == "elu":
        phi_q, phi_k = (torch.where(x > 0, x + 1, x.exp()) for x in (q, k))
        return torch.einsum("bthk,bshk->bhts", phi_q, phi_k)
    if name == "fourier":
        unit_q, unit_k = (x / x.norm(dim=-1, keepdim=True) for x in (q, k))
        difference = unit_q.unsqueeze(2) - unit_k.unsqueeze(1)  # [B, T, T, H, K]
        estimate: Tensor = (difference @ directions.T).cos().mean(-1)
        return estimate.permute(0, 3, 1, 2)
    assert name == "random", "add the formula of a new feature map here"
    total = torch.zeros_like(products)
    lengths = [(x.square().sum(-1) / math.sqrt(x.shape[-1]) / 2).transpose(1, 2) for x in (q, k)]
    for direction in directions:
        along = [(x @ direction / x.shape[-1] ** 0.25).transpose(1, 2) for x in (q, k)]
        exponents = [a - length for a, length in zip(along, lengths, strict=True)]
        total += (exponents[0].unsqueeze(-1) + exponents[1].unsqueeze(-2)).exp()
    return total / len(directions)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("T", [1, 33, 65])
@every_map
def test_attention_weights_values_by_the_kernel(name: str, T: int, causal: bool) -> None:
    """Compare outputs, gradients and final states of both forms with the kernel's formula."""
    leaves = [x.requires_grad_() for x in qkv(T)[:3]]
    directions = random_directions(5).double()
    q, k, v = leaves
    weights = similarity(name, q, k, directions)
    weights = weights.tril() if causal else weights
    expected = torch.einsum("bhts,bshv->bthv", weights, v)
    expected = expected / (weights.sum(-1).transpose(1, 2).unsqueeze(-1) + 1e-6)
    grad = torch.randn_like(expected)
    gradients = torch.autograd.grad(expected, leaves, grad)
    for form in (naive_linear_attention, linear_attention):
        phi_q, phi_k = features(q, name, directions), features(k, name, directions)
        o, final = form(phi_q, phi_k, v, causal=causal)
        assert_close(o, expected)
        for mine, theirs in zip(torch.autograd.grad(o, leaves, grad), gradients, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-9)
        assert_close(final.kv, torch.einsum("bthf,bthv->bhfv", phi_k, v))
        assert_close(final.z, phi_k.sum(1))


@every_map
def test_feature_count_and_nonnegative_kernel(name: str) -> None:
    q, k, _, directions = qkv(20)
    phi_q, phi_k = features(q, name, directions), features(k, name, directions)
    assert phi_q.shape[-1] == feature_count(name, 5)  # type: ignore[arg-type]
    if name != "fourier":  # an estimate with errors of either sign
        assert (torch.einsum("bthf,bshf->bhts", phi_q, phi_k) >= 0).all()
    assert features(q.float(), name, directions).dtype == torch.float32


def test_feature_values_of_an_example() -> None:
    x = torch.tensor([-2.0, 0.0, 3.0], dtype=torch.float64)
    assert_close(relu_feature_map(x), torch.tensor([0.001, 0.001, 3.001], dtype=torch.float64))
    products = torch.tensor([4.0, 0, -6 * 2**0.5, 0, 0, 9], dtype=torch.float64)
    assert_close(polynomial_feature_map(x), products)


def test_random_features_estimate_the_exponential_kernel() -> None:
    """The mean of many draws is within five standard errors; blocks are orthogonal."""
    q, k = 0.4 * torch.randn(2, 6, 4, dtype=torch.float64)
    expected = (q @ k.T / 2).exp()
    draws = []
    for _ in range(3000):
        directions = random_directions(4).double()
        draws.append(random_feature_map(q, directions) @ random_feature_map(k, directions).T)
    drawn = torch.stack(draws)
    error = drawn.std(0) / math.sqrt(len(drawn))
    assert ((drawn.mean(0) - expected).abs() < 5 * error).all()
    assert (error < 0.05 * expected).all()
    block = random_directions(4)[:4]
    products = block @ block.T
    assert_close(products, torch.diag(products.diagonal()))


def test_inhomogeneous_features_have_the_shifted_polynomial_kernel() -> None:
    q, k = torch.randn(2, 20, 6, dtype=torch.float64)
    kernel = inhomogeneous_feature_map(q) @ inhomogeneous_feature_map(k).T
    assert_close(kernel, (q @ k.T + 1) ** 2)


def test_fourier_features_estimate_the_gaussian_kernel() -> None:
    """The mean of many draws is within five standard errors; a key equal to the query has 1."""
    q, k = torch.randn(2, 6, 4, dtype=torch.float64)
    unit_q, unit_k = q / q.norm(dim=1, keepdim=True), k / k.norm(dim=1, keepdim=True)
    expected = (-(unit_q.unsqueeze(1) - unit_k).square().sum(-1) / 2).exp()
    draws = []
    for _ in range(1000):
        directions = random_directions(4).double()
        phi_q, phi_k = (fourier_feature_map(x, directions) for x in (q, k))
        draws.append(phi_q @ phi_k.T)
        assert_close((phi_q * fourier_feature_map(3 * q, directions)).sum(1), torch.ones(6))
    drawn = torch.stack(draws)
    error = drawn.std(0) / math.sqrt(len(drawn))
    assert ((drawn.mean(0) - expected).abs() < 5 * error).all()
    assert (error < 0.05 * expected).all()


def test_random_features_of_large_inputs_are_finite() -> None:
    directions = random_directions(32)
    far = torch.linspace(-1e4, 1e4, 9).unsqueeze(-1) * torch.randn(32)
    assert random_feature_map(far, directions).isfinite().all()
    assert random_feature_map(directions, directions).isfinite().all()
    assert fourier_feature_map(far, directions).isfinite().all()


def test_invalid_feature_maps_raise() -> None:
    x = torch.zeros(1, 5)
    with pytest.raises(ValueError, match=f"one of {', '.join(FEATURE_MAPS)}, not 'cosine'"):
        features(x, "cosine")
    for name in DIRECTED_MAPS:
        with pytest.raises(ValueError, match=f"'{name}' needs directions"):
            features(x, name)
