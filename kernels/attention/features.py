"""Feature maps φ: linear attention weighs a value by φ(q)ᵀ φ(k), a kernel of query and key (eq. 4).

Each map takes queries or keys ``[..., K]`` to features ``[..., F]`` of the same dtype, and every
product of two is 0 or more, so that weights are.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

FeatureMap = Literal["elu", "relu", "polynomial", "random"]
FEATURE_MAPS: tuple[str, ...] = get_args(FeatureMap)

RELU_FLOOR = 1e-3  # a query that no ReLU lets through would be 0 / 0, and its gradient boundless
RANDOM_FEATURES = 4  # random features for each feature of a head


def elu_feature_map(x: Tensor) -> Tensor:
    """Map queries and keys to positive features, ``elu(x) + 1`` (eq. 7); any shape, same dtype.

    Written without the detour over ``elu``, whose ``exp(x) - 1 + 1`` rounds away what a very
    negative input leaves.
    """
    return F.relu(x) + x.clamp(max=0).exp()


def relu_feature_map(x: Tensor) -> Tensor:
    """Map to ``relu(x)`` and a little more; any shape, same dtype."""
    return F.relu(x) + RELU_FLOOR


def polynomial_feature_map(x: Tensor) -> Tensor:
    """Map to all products of two features, whose kernel is (qᵀk)²: F = K (K + 1) / 2.

    It is summed from terms of both signs: where q and the keys so far are all but orthogonal, as at
    first positions they may be, float32 leaves little of it.
    """
    K = x.shape[-1]
    row, column = torch.triu_indices(K, K, device=x.device)
    # Filled where they are: a CUDA graph records no copy from the host.
    twice = torch.where(row == column, x.new_ones(()), x.new_full((), math.sqrt(2)))
    return x[..., row] * x[..., column] * twice


def random_feature_map(x: Tensor, directions: Tensor) -> Tensor:
    """Map to positive random features, whose kernel is exp(qᵀk / √K) on average: F = M.

    ``directions: [M, K]`` as ``random_directions`` gives them (Choromanski et al. 2021, *Rethinking
    Attention with Performers*, lemma 1). No feature exceeds exp(|direction|² / 2).
    """
    x = x / x.shape[-1] ** 0.25
    exponents = x @ directions.to(x.dtype).T - x.square().sum(-1, keepdim=True) / 2
    return exponents.exp() / math.sqrt(len(directions))


def random_directions(K: int) -> Tensor:
    """Draw directions for ``random_feature_map`` from torch's generator: float32 ``[4 K, K]``.

    Each K of them are orthogonal, which estimates the kernel better than independent ones, and
    their lengths are those of normal vectors.
    """
    # LAPACK prefers some signs; those of R's diagonal make the turn a uniformly random one.
    turned = [torch.linalg.qr(torch.randn(K, K)) for _ in range(RANDOM_FEATURES)]
    blocks = [q * r.diagonal().sign() for q, r in turned]
    lengths = torch.randn(RANDOM_FEATURES * K, K).norm(dim=1, keepdim=True)
    directions: Tensor = torch.cat(blocks) * lengths
    return directions


def feature_count(feature_map: FeatureMap, K: int) -> int:
    """Count the features that a map makes of K."""
    return {"polynomial": K * (K + 1) // 2, "random": RANDOM_FEATURES * K}.get(feature_map, K)


def features(x: Tensor, feature_map: str | None, directions: Tensor | None = None) -> Tensor:
    """Apply a feature map by name, None for one already applied: ``[..., K]`` → ``[..., F]``.

    ``random`` needs its ``directions``. Raises ``ValueError`` on an unknown name, or where they are
    missing.
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
        raise ValueError(f"the feature map must be one of {known}, or None, not {feature_map!r}")
    if directions is None:
        raise ValueError("the feature map 'random' needs its directions")
    return random_feature_map(x, directions)
