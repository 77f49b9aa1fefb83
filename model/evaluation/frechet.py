"""Fréchet distance between two sets of images in the features of a classifier.

The formula is that of the Fréchet Inception Distance (Heusel et al. 2017), but the features are
not Inception's. So results are comparable only for the same classifier and number of images.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def frechet_distance(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return the Fréchet distance of the Gaussians fitted to features ``[n, F]`` and ``[m, F]``.

    |μ₁ - μ₂|² + tr(C₁ + C₂ - 2 (C₁^½ C₂ C₁^½)^½). Raises ``ValueError`` on fewer than two rows.
    """
    if min(len(one), len(other)) < 2:
        raise ValueError("a Fréchet distance needs at least two images on each side")
    first, second = np.cov(one, rowvar=False), np.cov(other, rowvar=False)
    # C₁ C₂ has the same eigenvalues as C₁^½ C₂ C₁^½. Rounding may make some complex or negative.
    shared = np.linalg.eigvals(first @ second).real.clip(min=0)
    mean_distance = ((one.mean(0) - other.mean(0)) ** 2).sum()
    distance = mean_distance + np.trace(first) + np.trace(second) - 2 * np.sqrt(shared).sum()
    return max(float(distance), 0.0)  # rounding may make it slightly negative
