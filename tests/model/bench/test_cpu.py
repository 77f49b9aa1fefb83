"""Tests of the decoders' benchmark."""

from __future__ import annotations

import time
from typing import Any

import pytest

from scanline.kernels.native.abi import Precision
from scanline.model.bench import cpu as bench
from scanline.model.bench.models import find_models
from scanline.model.bench.roofline import Bound, bytes_per_step
from scanline.model.bench.table import format_row
from scanline.model.bench.timing import Timing, check_decoder, measure_images, time_decoder
from scanline.model.checkpoint import Checkpoint
from scanline.model.decoders.base import BackendError, Decoder
from scanline.model.decoders.native import NativeDecoder
from scanline.model.decoders.reference import ReferenceDecoder
from scanline.model.network import LinearTransformer
from tests.conftest import tiny_config
from tests.kernels.native.fixtures import TINY
from tests.model.decoders.fixtures import network_for


def test_benchmark_reports_every_backend_and_skips_slots_that_do_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(name: str, decoder: Decoder, *rest: Any) -> Timing:
        if (decoder.backend, decoder.max_slots) == ("native", 2):
            raise BackendError("2 slots do not fit")
        return time_decoder(name, decoder, *rest)

    monkeypatch.setattr(bench, "time_decoder", refuse)
    report = bench.run_bench(
        [Checkpoint("tiny", TINY)], backends=["native", "reference"], slots=[1, 2, 3], threads=1,
        seconds=0.01, repeats=1, progress=(lines := list[str]()).append,
    )  # fmt: skip
    assert [(t.backend, t.slots) for t in report.timings] == [
        ("native", 1), ("native", 3), ("reference", 1), ("reference", 2), ("reference", 3),
    ]  # fmt: skip
    assert "tiny, 2 slots: 2 slots do not fit" in report.notes
    for timing in report.timings:
        assert timing.milliseconds_per_step > 0
        assert timing.images_per_second > 0
        assert timing.limit in ("compute", "bytes")
        assert any(f"{timing.limit_ratio:.2f} × {timing.limit}" in line for line in lines)
    assert report.hardware["cpu"] in lines[0]
    assert all(peak > 0 for peak in report.peaks.values())


def test_models_are_found_by_name() -> None:
    assert [model.name for model in find_models(["mnist-paper"])] == ["mnist-paper"]
    with pytest.raises(ValueError, match=r"unknown model 'imagenet': choose .*mnist-paper"):
        find_models(["imagenet"])


def test_decoder_that_differs_is_not_timed() -> None:
    def open_another(model: LinearTransformer, max_slots: int) -> Decoder:
        return ReferenceDecoder(LinearTransformer(model.config), max_slots)

    with pytest.raises(RuntimeError, match="bits/dim from the reference, so it is not timed"):
        check_decoder(network_for(tiny_config()), open_another)


@pytest.mark.parametrize(
    ("pixels", "images", "drawn"),
    [pytest.param(5, 3, 15, id="repeated"), pytest.param(100, 1, 13, id="not finished")],
)
def test_images_are_repeated_for_the_time_of_a_run(
    monkeypatch: pytest.MonkeyPatch, pixels: int, images: int, drawn: int
) -> None:
    """A pixel takes 1 s, and a run at least 12.5 s. Starting images is not timed."""
    clock, started = [0.0], list[int]()

    def start() -> None:
        started.append(0)
        clock[0] += 1000

    def draw(n: int) -> None:
        clock[0] += n
        started[-1] += n

    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    assert measure_images(start, draw, pixels, 12.5) == (drawn, 1.0)
    assert len(started) == images
    assert sum(started) == drawn


def test_short_times_are_not_rounded_to_zero() -> None:
    timing = Timing("tiny", "native", 1, 144, 0.0018, 0.000253, 3946.67, 24.5, 25.8)
    assert format_row(timing).split()[6] == "0.000253"


@pytest.mark.parametrize(("precision", "slots"), [("float32", 3), ("int8", 2), ("int10", 1)])
def test_native_counts_the_bytes_of_weights_and_sums(precision: Precision, slots: int) -> None:
    """With sizes that need no padding, and without predictions, they are the least possible."""
    config = tiny_config(d_model=64, n_heads=2, d_ff=64)
    decoder = NativeDecoder(network_for(config), slots, 1, precision=precision, speculate=False)
    timing = time_decoder("tiny", decoder, 0.01, 1)
    least = bytes_per_step(config, slots, precision)
    assert timing.mbytes_per_step * 1e6 == pytest.approx(least)
    bound = Bound("bytes", 1e-3, 2 * timing.gbytes_per_second * 1e9)
    assert timing.with_bound(bound).bandwidth_share == pytest.approx(0.5)
