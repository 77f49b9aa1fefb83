"""Tests of the roofline model."""

from __future__ import annotations

import pytest

from scanline.kernels.native import abi as native
from scanline.kernels.native import build as native_build
from scanline.model.bench import roofline as roofline_module
from scanline.model.config import PRESETS
from tests.conftest import use_fast_build


@pytest.mark.parametrize(
    ("operations", "rate", "limit"),
    [
        (1e9, 1e12, ("compute", 64 * 12.9e6 / 1e9)),
        (1e15, 1e9, ("bytes", (12.6e6 + 64 * 540e3) / 1e9)),
    ],
)
def test_roofline_bound_is_slower_of_compute_and_bytes(
    monkeypatch: pytest.MonkeyPatch, operations: float, rate: float, limit: tuple[str, float]
) -> None:
    peaks = native.Peaks(operations, operations, operations, operations, rate, rate)
    monkeypatch.setattr(roofline_module, "measure_peaks", lambda library, threads: peaks)
    monkeypatch.setattr(roofline_module, "measure_bandwidth", lambda library, threads, size: rate)
    use_fast_build("portable", monkeypatch)
    roofline = roofline_module.Roofline(native.load_library("portable"), 1)
    bound = roofline.bound(PRESETS["mnist-paper"], 64, "bf16")
    assert bound.name == limit[0]
    assert bound.seconds == pytest.approx(limit[1], rel=0.02)
    assert bound.bytes_per_second == rate


def test_bandwidth_of_too_much_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    use_fast_build("portable", monkeypatch)
    library = native.load_library("portable")
    with pytest.raises(native_build.NativeBuildError, match="not enough memory or threads"):
        native.measure_bandwidth(library, 1, 1 << 60)


def test_roofline_of_paper_network() -> None:
    """12.6 MB of bf16 weights and 12.9 million operations."""
    config = PRESETS["mnist-paper"]
    assert roofline_module.bytes_per_step(config, 0, "bf16") == pytest.approx(12.6e6, rel=0.01)
    assert roofline_module.operations_per_step(config) == pytest.approx(12.9e6, rel=0.02)
