"""What is asked for, and what comes of it: a generation, its images, and how they are read.

Publishing is canvas and cursor: the engine's thread advances positions and wakes whoever waits;
each reader keeps its own cursor and takes what is new. A slow reader costs nothing.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanline.model.config import NO_LABEL, ModelConfig
from scanline.model.noise import image_seed, random_label
from scanline.model.particles import COLLAPSED

Clock = Callable[[], float]  # seconds, never going back; one for an engine and all it holds


class Status(StrEnum):
    """Where an image stands."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason(StrEnum):
    """Why an image is finished."""

    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, kw_only=True, eq=False)
class GenerationSpec:
    """What a generation is to draw: ``n`` images, of which image j has seed ``seed + j``.

    ``label`` is a class or -1, and ``random_label`` has each image's class chosen by its seed.
    ``canvas: uint8 [T, C]`` holds known pixels where ``known: bool [T]`` is true; both None for an
    image drawn from nothing. ``particles`` draw one image side by side (model/particles.py).
    """

    n: int
    seed: int
    label: int = NO_LABEL
    random_label: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    guidance: float = 1.0
    particles: int = 1
    canvas: NDArray[np.uint8] | None = None
    known: NDArray[np.bool_] | None = None

    @cached_property
    def guided(self) -> bool:
        """Whether each of its slots needs a twin."""
        return self.guidance != 1

    @cached_property
    def slots(self) -> int:
        """Count the slots that one of its images takes."""
        return self.particles * (2 if self.guided else 1)

    @cached_property
    def prefix(self) -> int:
        """Count the known pixels before the first unknown one: what prefill prefills."""
        if self.known is None:
            return 0
        return int(self.known.size if self.known.all() else self.known.argmin())

    @property
    def prefill_pixels(self) -> int:
        """Count the pixels that are prefilled where one of its images begins, its twin's too."""
        return self.prefix * (2 if self.guided else 1)


class CanvasView(NamedTuple):
    """Where an image is drawn: its pixels, ``[T, C]``, and its position, ``[1]``.

    Views of the decoder's canvas and of what the engine published while it runs, copies afterwards.
    """

    pixels: NDArray[np.uint8]
    position: NDArray[np.int32]


class ParticleStats(NamedTuple):
    """How the particles of an image fared: as ``ParticleFilter`` says."""

    effective_size: float
    min_effective_size: float
    log_evidence: float


class Image:
    """One picture of a generation; the engine's thread writes it, anyone may read it."""

    def __init__(
        self, index: int, seed: int, initial_view: CanvasView, label: int = NO_LABEL
    ) -> None:
        self.index, self.seed, self.label = index, seed, label
        self.status = Status.WAITING
        self.finish_reason: FinishReason | None = None
        self.bits: float | None = None  # of all its pixels, once drawn to the end
        self.particles: ParticleStats | None = None  # that drew it, once they have
        self.revisions: list[int] = []  # first pixels from which another particle was shown
        self._view = initial_view
        self._initial_pixels = initial_view.pixels  # what is shown of it where nothing was drawn

    def start(self, view: CanvasView) -> None:
        """Be drawn there from now on."""
        self._view, self.status = view, Status.RUNNING

    def switch_view(self, view: CanvasView, changed: int) -> None:
        """Show another view, whose pixels are others from ``changed`` on."""
        self._view = view
        self.revisions.append(changed)

    def write(self, start: int, pixels: NDArray[np.uint8], changed: list[int]) -> None:
        """Take over pixels drawn elsewhere: from ``start`` on, after those changes."""
        view = self._view
        stop = start + len(pixels)
        view.pixels[start:stop] = pixels
        self.revisions += changed
        view.position[0] = stop

    def finish(self, reason: FinishReason, bits: float | None) -> None:
        """Give the place up, keeping a copy of what was drawn there."""
        kept = CanvasView(self._view.pixels.copy(), self._view.position.copy())
        kept.pixels[kept.position[0] :] = self._initial_pixels[kept.position[0] :]
        self._view, self.bits = kept, bits
        self.finish_reason, self.status = reason, Status.FINISHED

    @property
    def position(self) -> int:
        """Pixels decided, as published."""
        while True:
            view = self._view
            position = int(view.position[0])
            # If the image finished meanwhile, its slot may already be another's: read the copy.
            if self._view is view:
                return position

    def read(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Copy pixels ``start … stop``, none past ``position``: ``[stop - start, C]``."""
        while True:
            view = self._view
            pixels = view.pixels[start:stop].copy()
            if self._view is view:  # as above
                return pixels

    def preview(self, position: int) -> NDArray[np.uint8]:
        """Copy it as far as a ``position`` that it has reached, and what is known past it."""
        pixels = self._initial_pixels.copy()
        pixels[:position] = self.read(0, position)
        return pixels


class Generation:
    """One request being worked on, safe to read from any thread.

    Times are seconds of its ``clock``; ``caller`` is whose turns it shares. ``size`` is how many
    slots all images of its request want, by default its own. ``error`` says, for a user, why images
    ended in error.
    """

    def __init__(
        self,
        model: str,
        config: ModelConfig,
        spec: GenerationSpec,
        clock: Clock = time.perf_counter,
        caller: str = "",
        request_slots: int | None = None,
    ) -> None:
        self.id = f"gen_{secrets.token_hex(12)}"
        # What is shown where nothing is drawn yet: what is known, or blanks that take no memory.
        given = np.broadcast_to(np.uint8(0), (config.pixels, config.channels))
        if spec.canvas is not None and spec.known is not None:
            given = np.where(spec.known[:, None], spec.canvas, np.uint8(0))
            spec = replace(spec, canvas=given)
        self.model, self.config, self.spec, self.caller = model, config, spec, caller
        self.request_slots = spec.n * spec.slots if request_slots is None else request_slots
        initial_view = CanvasView(given, np.zeros(1, np.int32))
        seeds = [image_seed(spec.seed, j) for j in range(spec.n)]
        labels = [spec.label] * spec.n
        if spec.random_label:
            labels = [random_label(seed, len(config.classes)) for seed in seeds]
        self.images = [
            Image(j, seed, initial_view, label)
            for j, (seed, label) in enumerate(zip(seeds, labels, strict=True))
        ]
        self.next_index = 0  # the first image not yet admitted
        self.unfinished = spec.n
        self.queue_position = 0  # images to be admitted before its first, when it came
        self.clock = clock
        self.created = clock()
        self.started: float | None = None  # first image admitted
        self.first_pixel: float | None = None
        self.ended: float | None = None
        self.error: str | None = None
        self.closed = False  # ended because the server shuts down
        self.cancelled = False
        self.detached = False  # from its readers: it goes on without any
        self.readers = 0
        self.expires: float | None = None  # when it is cancelled, unless a reader comes
        self.version = 0  # how often there was news
        # Dicts as sets in order: one reader of thousands leaves as quickly as any.
        self._change_callbacks: dict[Callable[[], None], None] = {}  # for any news
        self._done_callbacks: dict[Callable[[], None], None] = {}  # for the end alone
        self._lock = threading.Lock()

    @property
    def finished(self) -> bool:
        """Whether every image is finished and nothing will change any more."""
        return self.ended is not None

    @property
    def status(self) -> Status:
        """Where the generation as a whole stands."""
        if self.finished:
            return Status.FINISHED
        return Status.WAITING if self.started is None else Status.RUNNING

    @property
    def waiting(self) -> int:
        """Count the images not yet admitted."""
        return self.spec.n - self.next_index

    def remaining_pixels(self) -> list[int]:
        """Give, for each slot that its images have, the pixels to go until it is free."""
        running = [i for i in self.images[: self.next_index] if i.status is Status.RUNNING]
        return [self.config.pixels - i.position for i in running for _ in range(self.spec.slots)]

    @property
    def slot_demand(self) -> int:
        """Count the slots that its unfinished images have or want, of its size."""
        return self.request_slots * self.unfinished // self.spec.n

    @property
    def drawn_pixels(self) -> int:
        """Count the pixels that were drawn, leaving out the known ones that prefill prefilled."""
        prefix = self.spec.prefix
        return sum(max(0, image.position - prefix) for image in self.images)

    def bits_per_dim(self, image: Image) -> float | None:
        """Give a finished image's exact bits/dim under the model; None while it is not finished.

        All values count, known ones too, at temperature 1 and with its label.
        """
        return None if image.bits is None else round(image.bits / self.config.dims, 4)

    @property
    def warnings(self) -> list[str]:
        """Say what a user should know of what was drawn."""
        spec = self.spec
        if spec.particles > 1 and (spec.known is None or not spec.known[spec.prefix :].any()):
            return [
                "nothing is known after the first pixel that is drawn, so particles cost more and "
                "guided nothing: leave them out"
            ]
        each = (image.particles for image in self.images)
        collapsed = [one for one in each if one is not None and one.min_effective_size < COLLAPSED]
        if not collapsed:
            return []
        return [
            f"in {len(collapsed)} of {len(self.images)} images one particle had all the weight at "
            "some view, so what is known there guided little before it: ask for more particles, "
            "or leave fewer rows between what is known above and below"
        ]

    def add_change_callback(self, callback: Callable[[], None], seen: int | None = None) -> None:
        """Call back once at the next change, from the engine's thread; at once if finished.

        At once, too, if there was a change since ``changes`` was ``seen``.
        """
        with self._lock:
            if not self.finished and seen in (None, self.version):
                self._change_callbacks[callback] = None
                return
        callback()

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call back once at the end, from the engine's thread; at once if finished."""
        with self._lock:
            if not self.finished:
                self._done_callbacks[callback] = None
                return
        callback()

    def remove_callback(self, callback: Callable[[], None]) -> None:
        """Call this one back no more."""
        with self._lock:
            self._change_callbacks.pop(callback, None)
            self._done_callbacks.pop(callback, None)

    def notify(self) -> None:
        """Tell everyone who waits for news that there is some (the engine's thread)."""
        with self._lock:
            self.version += 1
            waiters, self._change_callbacks = self._change_callbacks, {}
        for callback in waiters:
            callback()

    def finish(self, now: float) -> None:
        """Mark the generation finished (the engine's thread, once)."""
        with self._lock:
            self.ended = now
            self._change_callbacks |= self._done_callbacks
            self._done_callbacks = {}
        self.notify()
