"""Tests of measured quantities and their spread."""

from __future__ import annotations

import numpy as np
import pytest

from scanline.model.paper.quantity import largest_spread, median_interval, timing_ratio


@pytest.mark.parametrize("n", [9, 12, 25])
def test_median_interval_contains_the_median_in_95_percent_of_cases(n: int) -> None:
    timings = np.random.default_rng(n).lognormal(size=(4000, n))  # their true median is 1
    intervals = np.array([median_interval(one.tolist()) for one in timings])
    covered = ((intervals[:, 0] <= 1) & (intervals[:, 1] >= 1)).mean()
    assert 0.945 < covered < 0.99


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_median_interval_of_few_timings_contains_all(n: int) -> None:
    assert median_interval([float(k) for k in range(n, 0, -1)]) == (1.0, n)


def test_spreads_leave_out_an_outlier_of_nine_timings() -> None:
    timings = [2.0, 2.0, 2.0, 2.0, 2.0, 2.1, 2.1, 2.2, 50.0]
    assert largest_spread([{"seconds": timings}]) == "10 %"
    ratio = timing_ratio(timings, [1.0])
    assert (ratio.low, ratio.value, ratio.high) == (2.0, 2.0, 2.2)
