"""Feature maps φ of linear attention, which weights a value by the kernel φ(q)ᵀ φ(k) (eq. 4).

Each map takes queries or keys ``[..., K]`` to features ``[..., F]`` of the same dtype. The product
of two feature vectors is never negative, so attention weights are not either.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

FeatureMap = Literal["elu", "relu", "polynomial", "random"]
FEATURE_MAPS: tuple[str, ...] = get_args(FeatureMap)

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


def random_feature_map(x: Tensor, directions: Tensor) -> Tensor:
    """Return positive random features, whose expected kernel is exp(qᵀk / √K): F = M.

    ``directions: [M, K]`` come from ``random_directions`` (Choromanski et al. 2021, *Rethinking
    Attention with Performers*, lemma 1). No feature exceeds exp(|direction|² / 2).
    """
    x = x / x.shape[-1] ** 0.25
    exponents = x @ directions.to(x.dtype).T - x.square().sum(-1, keepdim=True) / 2
    return exponents.exp() / math.sqrt(len(directions))


def random_directions(K: int) -> Tensor:
    """Draw directions for ``random_feature_map`` with torch's generator: float32 ``[4 K, K]``.

    Each block of K directions is orthogonal, which estimates the kernel better than independent
    directions. Their lengths are distributed like those of normal vectors.
    """
    # Multiplying by the signs of R's diagonal makes LAPACK's Q uniformly distributed.
    factors = [torch.linalg.qr(torch.randn(K, K)) for _ in range(RANDOM_FEATURES)]
    blocks = [q * r.diagonal().sign() for q, r in factors]
    lengths = torch.randn(RANDOM_FEATURES * K, K).norm(dim=1, keepdim=True)
    directions: Tensor = torch.cat(blocks) * lengths
    return directions


def feature_count(feature_map: FeatureMap, K: int) -> int:
    """Return the number of features that a map makes of K."""
    return {"polynomial": K * (K + 1) // 2, "random": RANDOM_FEATURES * K}.get(feature_map, K)


def features(x: Tensor, feature_map: str | None, directions: Tensor | None = None) -> Tensor:
    """Apply a feature map by name: ``[..., K]`` → ``[..., F]``.

    Args:
        x: Queries or keys.
        feature_map: One of ``FEATURE_MAPS``; None returns ``x`` unchanged.
        directions: Directions of the feature map ``random``.

    Raises:
        ValueError: Unknown feature map, or ``random`` without directions.
    """
    if feature_map is None:
        return x
    if feature_map == "elu":
        return elu_feature_map(x)
    if feature_map == "relu":
        return relu_feature_map(x)
    if feature_map == "polynomial":
        return polynomial_feature_map(x)
    if feature_map != "random":
        known = ", ".join(FEATURE_MAPS)
        raise ValueError(f"feature map must be one of {known}, or None, not {feature_map!r}")
    if directions is None:
        raise ValueError("feature map 'random' needs directions")
    return random_feature_map(x, directions)
