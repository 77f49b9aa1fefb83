"""Fréchet distance."""

from __future__ import annotations

import numpy as np
import pytest

from scanline.model.evaluation.frechet import frechet_distance


def test_frechet_distance_of_gaussians() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 5)) @ rng.normal(size=(5, 5)) + 1
    assert frechet_distance(x, x) == pytest.approx(0, abs=1e-9)
    assert frechet_distance(x, x[::-1]) == pytest.approx(0, abs=1e-9)
    step = np.arange(5.0)
    assert frechet_distance(x, x + step) == pytest.approx(step @ step)
    # Twice as wide: |μ|² + tr(C + 4C - 2·2C)
    mean, spread = x.mean(0), np.trace(np.cov(x, rowvar=False))
    assert frechet_distance(x, 2 * x) == pytest.approx(mean @ mean + spread)
    assert frechet_distance(2 * x, x) == pytest.approx(mean @ mean + spread)
    flat = x * [1, 1, 1, 1, 0]  # a constant feature
    assert frechet_distance(flat, flat) == pytest.approx(0, abs=1e-9)
    with pytest.raises(ValueError, match="two images"):
        frechet_distance(x, x[:1])
