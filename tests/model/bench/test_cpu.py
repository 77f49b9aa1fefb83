"""Tests of the decoders' benchmark and its roofline model."""

from __future__ import annotations

from typing import Any

import pytest

from scanline.kernels.native import abi as native
from scanline.kernels.native import build as native_build
from scanline.model.bench import cpu as bench
from scanline.model.bench import roofline as roofline_module
from scanline.model.bench.models import find_model, find_models
from scanline.model.bench.peer import Peer
from scanline.model.checkpoint import Checkpoint
from scanline.model.config import PRESETS
from scanline.model.decoders.base import BackendError, Decoder
from scanline.model.decoders.reference import ReferenceDecoder
from scanline.model.network import LinearTransformer
from tests.conftest import build_sooner, tiny_config
from tests.kernels.native.fixtures import TINY
from tests.model.decoders.fixtures import network_for


def test_benchmark_reports_every_backend() -> None:
    report = bench.run_bench(
        find_models(["mnist-paper"]), backends=["native", "reference"], slots=[1, 3], threads=1,
        seconds=0.01, repeats=1,
        progress=(lines := list[str]()).append,
    )  # fmt: skip
    assert [(t.backend, t.slots) for t in report.timings] == [
        ("native", 1), ("native", 3), ("reference", 1), ("reference", 3),
    ]  # fmt: skip
    assert all(t.milliseconds_a_step > 0 and t.images_a_second > 0 for t in report.timings)
    for timing in report.timings:
        assert timing.limit in ("compute", "bytes")
        assert timing.times_limit is not None
        assert any(f"{timing.times_limit:.2f} × {timing.limit}" in line for line in lines)
    assert report.hardware["cpu"] in lines[0]
    assert all(peak > 0 for peak in report.peaks.values())
    with pytest.raises(ValueError, match=r"unknown model 'imagenet': choose .*mnist-paper"):
        find_models(["imagenet"])


def test_slots_that_do_not_fit_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    time_backend = bench.time_backend

    def refuse(name: str, model: LinearTransformer, factory: Any, *rest: Any) -> Any:
        if rest[-1] == 2:
            raise BackendError("2 slots do not fit")
        return time_backend(name, model, factory, *rest)

    monkeypatch.setattr(bench, "time_backend", refuse)
    report = bench.run_bench(
        [Checkpoint("tiny", TINY)], backends=["reference"], slots=[1, 2, 3], threads=1,
        seconds=0.01, repeats=1, progress=lambda line: None,
    )  # fmt: skip
    assert [timing.slots for timing in report.timings] == [1, 3]
    assert "tiny, 2 slots: 2 slots do not fit" in report.notes


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
    build_sooner("portable", monkeypatch)
    roofline = roofline_module.Roofline(native.load_library("portable"), 1)
    bound = roofline.bound(PRESETS["mnist-paper"], 64, "bf16")
    assert bound.name == limit[0]
    assert bound.seconds == pytest.approx(limit[1], rel=0.02)


def test_bandwidth_of_too_much_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    build_sooner("portable", monkeypatch)
    library = native.load_library("portable")
    with pytest.raises(native_build.NativeBuildError, match="not enough memory or threads"):
        native.measure_bandwidth(library, 1, 1 << 60)


def test_decoder_that_differs_is_not_timed() -> None:
    def open_another(model: LinearTransformer, max_slots: int) -> Decoder:
        return ReferenceDecoder(LinearTransformer(model.config), max_slots)

    with pytest.raises(RuntimeError, match="bits/dim from the reference, so it is not timed"):
        bench.check_decoder(network_for(tiny_config()), open_another)


def test_peer_computes_the_same() -> None:
    pytest.importorskip("fast_transformers")
    Peer(find_model("mnist-paper").model, 2).check()


def test_roofline_of_paper_network() -> None:
    """12.6 MB of bf16 weights and 12.9 million operations."""
    config = PRESETS["mnist-paper"]
    assert roofline_module.bytes_per_step(config, 0, "bf16") == pytest.approx(12.6e6, rel=0.01)
    assert roofline_module.operations_per_step(config) == pytest.approx(12.9e6, rel=0.02)


def test_short_times_are_not_rounded_to_zero() -> None:
    timing = bench.Timing("tiny", "native", 1, 144, 0.0018, 0.000253, 3946.67, 24.5, 25.8)
    assert bench.format_row(timing).split()[6] == "0.000253"
