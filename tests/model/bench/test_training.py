"""Tests of the training benchmark."""

from __future__ import annotations

import pytest

from scanline.model.bench.training import run_training_bench


def test_benchmark_compares_variants_of_a_step() -> None:
    lines: list[str] = []
    report = run_training_bench(["mnist"], 1, 1, lines.append, batch=1)
    variants = ["native passes", "plain torch", "native, no convolution"]
    assert [timing.variant for timing in report.timings] == variants
    assert all(timing.images_per_second > 0 for timing in report.timings)
    assert all(timing.peak_share is not None for timing in report.timings)
    assert "× plain torch; the short convolution takes" in lines[-1]
    with pytest.raises(ValueError, match="unknown preset 'mnits'"):
        run_training_bench(["mnits"], 1, 1, lines.append)
