"""Feature maps φ of linear attention, which weights a value by the kernel φ(q)ᵀ φ(k) (eq. 4).

Each map takes queries or keys ``[..., K]`` to features ``[..., F]`` of the same dtype. The product
of two feature vectors is never negative, so attention weights are not either. The exception is
``fourier``: its estimate of a positive kernel may be negative.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from scanline.kernels.constants import FEATURE_MAPS, FeatureMap

RELU_FLOOR = 1e-3  # keeps the denominator from being 0 if all ReLUs of a query are
RANDOM_FEATURES = 4  # number of random features per input feature


def elu_feature_map(x: Tensor) -> Tensor:
    """Return ``elu(x) + 1`` (eq. 7) of any shape.

    Does not use ``elu``, because its ``exp(x) - 1 + 1`` rounds small values to 0.
    """
    return F.relu(x) + x.clamp(max=0).exp()


def relu_feature_map(x: Tensor) -> Tensor:
    """Return ``relu(x)`` plus a small constant, of any shape."""
    return F.relu(x) + RELU_FLOOR


def polynomial_feature_map(x: Tensor) -> Tensor:
    """Return all products of two features, whose kernel is (qᵀk)²: F = K (K + 1) / 2.

    The kernel is a sum of terms of both signs, so float32 cancellation makes it inaccurate if q and
    the keys so far are nearly orthogonal, as may happen at the first positions.
    """
    K = x.shape[-1]
    row, column = torch.triu_indices(K, K, device=x.device)
    # Created on the device, because a CUDA graph cannot capture a copy from pageable host memory.
    twice = torch.where(row == column, x.new_ones(()), x.new_full((), math.sqrt(2)))
    return x[..., row] * x[..., column] * twice


def inhomogeneous_feature_map(x: Tensor) -> Tensor:
    """Return the features of the kernel (qᵀk + 1)²: F = (K + 1) (K + 2) / 2.

    These are the products of two entries of ``[x, 1]``, whose inner product is qᵀk + 1. Learned
    queries and keys need no other constant c > 0: dividing both by √c gives (qᵀk + c)² / c², and
    the factor cancels in the attention.
    """
    return polynomial_feature_map(torch.cat([x, torch.ones_like(x[..., :1])], -1))


def random_feature_map(x: Tensor, directions: Tensor) -> Tensor:
    """Return positive random features, whose expected kernel is exp(qᵀk / √K): F = M.

    ``directions: [M, K]`` come from ``random_directions`` (Choromanski et al. 2021, *Rethinking
    Attention with Performers*, lemma 1). No feature exceeds exp(|direction|² / 2).
    """
    x = x / x.shape[-1] ** 0.25
    exponents = x @ directions.to(x.dtype).T - x.square().sum(-1, keepdim=True) / 2
    return exponents.exp() / math.sqrt(len(directions))


def fourier_feature_map(x: Tensor, directions: Tensor) -> Tensor:
    """Return random Fourier features of ``x`` at unit length: F = 2 M.

    φ(x) = [cos(W x̂), sin(W x̂)] / √M with x̂ = x / |x| and W = ``directions: [M, K]`` from
    ``random_directions``. The expected kernel is the Gaussian exp(-|q̂ - k̂|² / 2) (Rahimi and Recht
    2007, *Random Features for Large-Scale Kernel Machines*, theorem 1). At unit length, as in Peng
    et al. 2021 (*Random Feature Attention*), it is at least exp(-2). Without that, distant queries
    and keys would have weights that are all estimation error.
    """
    angles = F.normalize(x, dim=-1) @ directions.to(x.dtype).T
    return torch.cat([angles.cos(), angles.sin()], -1) / math.sqrt(len(directions))


def random_directions(K: int) -> Tensor:
    """Draw directions for random feature maps with torch's generator: float32 ``[4 K, K]``.

    Each block of K directions is orthogonal, which estimates the kernel better than independent
    directions. Their lengths are distributed like those of normal vectors.
    """
    # Multiplying by the signs of R's diagonal makes LAPACK's Q uniformly distributed.
    factors = [torch.linalg.qr(torch.randn(K, K)) for _ in range(RANDOM_FEATURES)]
    blocks = [q * r.diagonal().sign() for q, r in factors]
    lengths = torch.randn(RANDOM_FEATURES * K, K).norm(dim=1, keepdim=True)
    directions: Tensor = torch.cat(blocks) * lengths
    return directions


class _Map(NamedTuple):
    """A feature map, its number of features F of K, and whether it has random directions."""

    function: Callable[..., Tensor]
    count: Callable[[int], int]
    directed: bool = False


_MAPS: dict[str, _Map] = {
    "elu": _Map(elu_feature_map, lambda K: K),
    "relu": _Map(relu_feature_map, lambda K: K),
    "polynomial": _Map(polynomial_feature_map, lambda K: K * (K + 1) // 2),
    "inhomogeneous": _Map(inhomogeneous_feature_map, lambda K: (K + 1) * (K + 2) // 2),
    "random": _Map(random_feature_map, lambda K: RANDOM_FEATURES * K, directed=True),
    "fourier": _Map(fourier_feature_map, lambda K: 2 * RANDOM_FEATURES * K, directed=True),
}
DIRECTED_MAPS = tuple(name for name, each in _MAPS.items() if each.directed)


def feature_count(feature_map: FeatureMap, K: int) -> int:
    """Return the number of features that a map makes of K."""
    return _MAPS[feature_map].count(K)


def features(x: Tensor, feature_map: str, directions: Tensor | None = None) -> Tensor:
    """Apply a feature map by name: ``[..., K]`` → ``[..., F]``.

    Args:
        x: Queries or keys.
        feature_map: One of ``FEATURE_MAPS``.
        directions: Directions of the feature maps ``random`` and ``fourier``.

    Raises:
        ValueError: Unknown feature map, or no directions for one that needs them.
    """
    if feature_map not in _MAPS:
        known = ", ".join(FEATURE_MAPS)
        raise ValueError(f"feature map must be one of {known}, not {feature_map!r}")
    function, _, directed = _MAPS[feature_map]
    if not directed:
        return function(x)
    if directions is None:
        raise ValueError(f"feature map {feature_map!r} needs directions")
    return function(x, directions)
