"""Tests of a generation's usage."""

from __future__ import annotations

import numpy as np

from scanline.service.api.replies import Usage
from scanline.service.engine.generation import CanvasView, Generation, GenerationSpec
from tests.fake_clock import Clock
from tests.service.fixtures import GREY


def test_usage_separates_waiting_from_drawing() -> None:
    clock = Clock()
    generation = Generation("it", GREY, GenerationSpec(n=1, seed=0), clock)
    clock.now += 3
    assert Usage.of(generation) == Usage(pixels=0, seconds=0, queue_seconds=3, pixels_per_second=0)
    generation.started = clock.now
    place = CanvasView(np.zeros((GREY.pixels, 1), np.uint8), np.array([10], np.int32))
    generation.images[0].start(place)
    clock.now += 2
    so_far = Usage(pixels=10, seconds=2, queue_seconds=3, pixels_per_second=5)
    assert Usage.of(generation) == so_far
    generation.finish(clock.now)
    clock.now += 9
    assert Usage.of(generation) == so_far
