"""Times that an engine measures: waiting, first pixel, steps and rate, with a fake clock."""

from __future__ import annotations

import numpy as np
import pytest

from scanline.model.sampling import SamplingParams
from scanline.service.api.replies import Usage
from scanline.service.engine.generation import Generation, GenerationSpec
from scanline.service.engine.image import CanvasView, FinishReason
from scanline.service.engine.queue import RATE_TIME_CONSTANT
from tests.fake_clock import Clock
from tests.service.engine.fixtures import (
    EVERY_FAKE,
    RecordingObserver,
    assert_right,
    completion,
    opened,
)
from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import GREY


def test_waiting_time_first_pixel_and_total_time_are_measured() -> None:
    decoder, clock, observer = FakeDecoder(GREY, 1), Clock(), RecordingObserver()
    during: list[dict[str, float | int]] = []
    with opened(decoder, observer, clock) as engine:
        first, second = (engine.queue.submit(GenerationSpec(n=1, seed=seed)) for seed in range(2))
        clock.now += 2.5

        def draw(slots: list[int]) -> None:
            if len(decoder.steps) == 11:
                during.extend(Usage.of(generation).model_dump() for generation in (first, second))
            clock.now += 0.5  # so long that a step has one pixel

        decoder.before_step = draw
        with engine.queue.reading(first), engine.queue.reading(second):
            engine.start()
            assert_right(first)
            assert_right(second)
    rate = {"pixels_per_second": 2.0}
    assert during == [
        {"pixels": 10, "seconds": 5.0, "queue_seconds": 2.5} | rate,
        {"pixels": 0, "seconds": 0.0, "queue_seconds": 7.5, "pixels_per_second": 0.0},
    ]
    assert (
        Usage.of(first).model_dump() == {"pixels": 30, "seconds": 15.0, "queue_seconds": 2.5} | rate
    )
    assert (
        Usage.of(second).model_dump()
        == {"pixels": 30, "seconds": 15.0, "queue_seconds": 17.5} | rate
    )
    assert observer.waits == [2.5, 17.5]
    assert observer.first_pixels == [3.0, 18.0]
    assert observer.steps == [(0.5, 1)] * 60


@EVERY_FAKE
def test_the_first_drawn_pixel_is_reported_once(
    decoders: type[FakeDecoder],
) -> None:
    class Watching(RecordingObserver):
        def first_pixel(self, after: float) -> None:
            seen.append([image.position for image in generation.images])

    decoder, seen = decoders(GREY, 2), list[list[int]]()
    with opened(decoder, Watching(), Clock()) as engine:
        known = np.arange(GREY.pixels) < 8
        generation = engine.queue.submit(completion(GREY, 1, known))
        engine.start()
        with engine.queue.reading(generation):
            assert_right(generation)
    # If steps pass over known pixels: one pixel first, and then a row.
    assert seen == [[9 if decoder.min_prefill <= 8 else 1 + 2 * GREY.width]]


@pytest.mark.parametrize(
    "spec",
    [
        GenerationSpec(n=2, seed=0),
        GenerationSpec(n=1, seed=0, sampling=SamplingParams(label=1, guidance=2.0)),
    ],
    ids=["two", "a twin"],
)
def test_the_rate_is_a_moving_average(spec: GenerationSpec) -> None:
    decoder, clock = FakeDecoder(GREY, 2), Clock()
    seconds = iter([1 / 64, 1 / 16, 1 / 64])
    rates: list[float] = []
    with opened(decoder, clock=clock) as engine:

        def draw(slots: list[int]) -> None:
            rates.append(engine.queue.rate)
            clock.now += next(seconds, 1 / 64)

        decoder.before_step = draw
        generation = engine.queue.submit(spec)
        with engine.queue.reading(generation):
            engine.start()
            assert_right(generation)
    # Two pixels per step, at 128, 32 and 128 pixels/s, weighted by the steps' durations.
    shares = [seconds / (seconds + RATE_TIME_CONSTANT) for seconds in (1 / 16, 1 / 64)]
    slower = 128 - shares[0] * 96
    assert rates[:4] == pytest.approx([0, 128, slower, slower + shares[1] * (128 - slower)])


def test_drawn_pixels_do_not_include_the_prefix() -> None:
    generation = Generation("it", GREY, completion(GREY, 0, np.arange(GREY.pixels) < 13, n=3))
    assert generation.drawn_pixels == 0
    canvas = np.zeros((GREY.pixels, 1), np.uint8)
    generation.images[0].start(CanvasView(canvas, np.array([20], np.int32)))
    assert generation.drawn_pixels == 7
    whole = completion(GREY, 0, np.ones(GREY.pixels, np.bool_))
    assert whole.prefix == GREY.pixels


def test_remaining_pixels_cover_running_images_only() -> None:
    generation = Generation(
        "it", GREY, GenerationSpec(n=3, seed=0, sampling=SamplingParams(label=1, guidance=2.0))
    )
    canvas = np.zeros((GREY.pixels, 1), np.uint8)
    for image in generation.images[:2]:
        image.start(CanvasView(canvas, np.array([20], np.int32)))
    generation.next_index = 2
    assert generation.remaining_pixels() == [10, 10, 10, 10]
    generation.images[0].finish(FinishReason.LENGTH, 1.0)
    assert generation.remaining_pixels() == [10, 10]
