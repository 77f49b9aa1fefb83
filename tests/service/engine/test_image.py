"""Reading images from other threads: race conditions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from scanline.service.engine.generation import Generation, GenerationSpec
from scanline.service.engine.image import CanvasView, FinishReason, Image
from tests.service.engine.fixtures import EVERY_FAKE, finished, running
from tests.service.fake_decoders import FakeDecoder, fake_image
from tests.service.fixtures import GREY


@EVERY_FAKE
def test_readers_never_see_pixels_of_the_next_image_in_a_slot(
    decoders: type[FakeDecoder],
) -> None:
    decoder = decoders(GREY, 2)
    errors: list[str] = []
    done = threading.Event()
    with running(decoder, keep_finished=0) as engine:
        live: list[Generation] = []

        def read_repeatedly() -> None:
            while not done.is_set():
                for generation in live:
                    for image in generation.images:
                        stop = image.position
                        pixels = image.read(0, stop)
                        if not np.array_equal(pixels, expected[image.seed][:stop]):
                            errors.append(f"{image.seed} at {stop}: {pixels.ravel()}")

        specs = [GenerationSpec(n=4, seed=10 * j) for j in range(24)]
        expected = {spec.seed + j: fake_image(GREY, spec, j) for spec in specs for j in range(4)}
        threads = [threading.Thread(target=read_repeatedly) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for first in range(0, len(specs), 3):
                live[:] = [engine.queue.submit(r) for r in specs[first : first + 3]]
                for generation in live:
                    with engine.queue.reading(generation):
                        finished(generation)
        finally:
            done.set()
            for thread in threads:
                thread.join()
    assert not errors, errors[:3]


class Late:
    """Array whose access calls ``end``, as if a slow reader were overtaken and the slot reused."""

    def __init__(self, values: NDArray[Any], end: Callable[[], None], reused: int) -> None:
        self._values, self._end, self._reused = values, end, reused

    def __getitem__(self, part: int | slice) -> object:
        self._end()
        self._values[:] = self._reused
        return self._values[part]

    def copy(self) -> NDArray[Any]:
        return self._values.copy()


def test_an_image_that_finishes_during_a_read_is_read_again() -> None:
    """Provokes the race with an array that finishes the image during the read."""
    row, position = np.full((4, 1), 7, np.uint8), np.full(1, 4, np.int32)
    image = Image(0, 0, CanvasView(row, position))
    late = Late(row, lambda: image.finish(FinishReason.LENGTH, None), reused=99)
    image.start(CanvasView(cast("NDArray[np.uint8]", late), position))
    assert image.read(0, 4).ravel().tolist() == [7, 7, 7, 7]


def test_an_image_that_finishes_during_a_position_read_is_read_again() -> None:
    row, position = np.full((4, 1), 7, np.uint8), np.full(1, 4, np.int32)
    image = Image(0, 0, CanvasView(row, position))
    late = Late(position, lambda: image.finish(FinishReason.LENGTH, None), reused=1)
    image.start(CanvasView(row, cast("NDArray[np.int32]", late)))
    assert image.position == 4
