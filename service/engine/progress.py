"""Progress of generations, reported to their readers and to the metrics."""

from __future__ import annotations

from typing import Protocol

from scanline.service.engine.generation import Clock, Generation
from scanline.service.engine.image import FinishReason, Image
from scanline.service.engine.queue import Queue


class Observer(Protocol):
    """Receiver of engine events, for metrics. Called on the engine thread, so it must be fast."""

    def admitted(self, waited: float) -> None:
        """Record that a generation's first image started after ``waited`` seconds."""

    def first_pixel(self, after: float) -> None:
        """Record that a generation's first pixel was drawn ``after`` seconds."""

    def ended(self, after: float) -> None:
        """Record that a generation was drawn completely ``after`` seconds."""

    def stepped(self, seconds: float, pixels: int) -> None:
        """Record a decoder step."""

    def finished(self, reason: FinishReason) -> None:
        """Record that an image finished."""

    def redrawn(self, images: int) -> None:
        """Record images that a lost replica did not finish."""


class ProgressTracker:
    """Reports the progress of a queue's generations. Used by the engine thread only."""

    def __init__(self, queue: Queue, observer: Observer | None, clock: Clock) -> None:
        self._queue, self._observer, self._clock = queue, observer, clock

    def begin(self, generation: Generation) -> None:
        """Record that images of a generation run. Only the first call has an effect."""
        if generation.started is None:
            generation.started = self._clock()
            if self._observer:
                self._observer.admitted(generation.started - generation.created)

    def prefilled(self, generation: Generation) -> None:
        """Record that known pixels are prefilled. Only the first call has an effect."""
        if generation.prefilled is None:
            generation.prefilled = self._clock()

    def advance(self, generation: Generation) -> None:
        """Notify the readers of new pixels, and finish the generation if all images finished."""
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
        """Record that other replicas draw images that one did not finish."""
        if self._observer:
            self._observer.redrawn(images)

    def finish_image(
        self, generation: Generation, image: Image, reason: FinishReason, bits: float | None
    ) -> None:
        """Finish an image; ``bits`` is its cost in bits if it is complete, else None."""
        image.finish(reason, bits)
        generation.unfinished -= 1
        if self._observer:
            self._observer.finished(reason)
