"""How far apart two sets of pictures are, as a classifier sees them.

The formula is that of the Fréchet Inception Distance (Heusel et al. 2017), the features are not:
this is not the Inception FID, and compares only with figures of the same classifier and count.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def frechet_distance(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Give the Fréchet distance of the Gaussians fitted to features ``[n, F]`` and ``[m, F]``.

    |μ₁ - μ₂|² + tr(C₁ + C₂ - 2 (C₁^½ C₂ C₁^½)^½). Raises ``ValueError`` on fewer than two rows.
    """
    if min(len(one), len(other)) < 2:
        raise ValueError("a Fréchet distance needs at least two pictures on each side")
    first, second = np.cov(one, rowvar=False), np.cov(other, rowvar=False)
    root = _square_root(first)
    shared = np.linalg.eigvalsh(root @ second @ root).clip(min=0)
    apart = ((one.mean(0) - other.mean(0)) ** 2).sum()
    distance = apart + np.trace(first) + np.trace(second) - 2 * np.sqrt(shared).sum()
    return max(float(distance), 0.0)  # rounding may leave less than nothing


def _square_root(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Give the square root of a symmetric matrix without negative eigenvalues."""
    values, vectors = np.linalg.eigh(matrix)
    root: NDArray[np.float64] = (vectors * np.sqrt(values.clip(min=0))) @ vectors.T
    return root
