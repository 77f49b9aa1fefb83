"""How a generation gets on: begun, its first pixel, its end; told to its readers and to metrics."""

from __future__ import annotations

from typing import Protocol

from scanline.service.engine.generation import Clock, FinishReason, Generation, Image
from scanline.service.engine.queue import Queue


class Observer(Protocol):
    """Hears what happens, for metrics; called by whoever draws, so it must be quick."""

    def admitted(self, waited: float) -> None: ...
    def first_pixel(self, after: float) -> None: ...
    def ended(self, after: float) -> None: ...
    def stepped(self, seconds: float, pixels: int) -> None: ...
    def finished(self, reason: FinishReason) -> None: ...
    def redrawn(self, images: int) -> None: ...


class ProgressTracker:
    """Notes how the generations of a queue get on; for the one thread that draws them."""

    def __init__(self, queue: Queue, observer: Observer | None, clock: Clock) -> None:
        self._queue, self._observer, self._clock = queue, observer, clock

    def begin(self, generation: Generation) -> None:
        """Note that images of it are drawn from now on; only the first time counts."""
        if generation.started is None:
            generation.started = self._clock()
            if self._observer:
                self._observer.admitted(generation.started - generation.created)

    def advance(self, generation: Generation) -> None:
        """Wake the readers of a generation that has new pixels, and end it if it has them all."""
        if generation.finished:
            return
        now = self._clock()
        if generation.first_pixel is None and generation.drawn_pixels:
            generation.first_pixel = now
            if self._observer:
                self._observer.first_pixel(now - generation.created)
        if generation.unfinished:
            generation.notify()
            return
        self._queue.finish(generation)
        if self._observer:
            self._observer.ended(now - generation.created)

    def redraw(self, images: int) -> None:
        """Note that what a replica did not finish is drawn again by others."""
        if self._observer:
            self._observer.redrawn(images)

    def finish_image(
        self, generation: Generation, image: Image, reason: FinishReason, bits: float | None
    ) -> None:
        """End an image, which cost so many bits if it is complete."""
        image.finish(reason, bits)
        generation.unfinished -= 1
        if self._observer:
            self._observer.finished(reason)
