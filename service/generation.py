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
class Spec:
    """What a generation is to draw: ``n`` images, of which image j has seed ``seed + j``.

    ``label`` is a class or -1, and ``any_label`` has each image's class chosen by its seed.
    ``canvas: uint8 [T, C]`` holds known pixels where ``known: bool [T]`` is true; both None for an
    image drawn from nothing. ``particles`` draw one image side by side (model/particles.py).
    """

    n: int
    seed: int
    label: int = NO_LABEL
    any_label: bool = False
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
        """Count the known pixels before the first unknown one: what prefill absorbs."""
        if self.known is None:
            return 0
        return int(self.known.size if self.known.all() else self.known.argmin())

    @property
    def absorbed(self) -> int:
        """Count the pixels that are absorbed where one of its images begins, its twin's too."""
        return self.prefix * (2 if self.guided else 1)


class Place(NamedTuple):
    """Where an image is drawn: its pixels, ``[T, C]``, and its position, ``[1]``.

    Views of the decoder's canvas and of what the engine published while it runs, copies afterwards.
    """

    pixels: NDArray[np.uint8]
    position: NDArray[np.int32]


class Weighed(NamedTuple):
    """How the particles of an image fared: as ``Particles`` says."""

    effective: float
    least: float
    log_evidence: float


class Image:
    """One picture of a generation; the engine's thread writes it, anyone may read it."""

    def __init__(self, index: int, seed: int, nowhere: Place, label: int = NO_LABEL) -> None:
        self.index, self.seed, self.label = index, seed, label
        self.status = Status.WAITING
        self.finish_reason: FinishReason | None = None
        self.bits: float | None = None  # of all its pixels, once drawn to the end
        self.particles: Weighed | None = None  # that drew it, once they have
        self.changed: list[int] = []  # first pixels from which another particle was shown
        self._place = nowhere
        self._given = nowhere.pixels  # what is shown of it where nothing was drawn

    def run(self, place: Place) -> None:
        """Be drawn there from now on."""
        self._place, self.status = place, Status.RUNNING

    def move(self, place: Place, changed: int) -> None:
        """Show another place, whose pixels are others from ``changed`` on."""
        self._place = place
        self.changed.append(changed)

    def paint(self, start: int, pixels: NDArray[np.uint8], changed: list[int]) -> None:
        """Take over pixels drawn elsewhere: from ``start`` on, after those changes."""
        place = self._place
        stop = start + len(pixels)
        place.pixels[start:stop] = pixels
        self.changed += changed
        place.position[0] = stop

    def finish(self, reason: FinishReason, bits: float | None) -> None:
        """Give the place up, keeping a copy of what was drawn there."""
        kept = Place(self._place.pixels.copy(), self._place.position.copy())
        kept.pixels[kept.position[0] :] = self._given[kept.position[0] :]
        self._place, self.bits = kept, bits
        self.finish_reason, self.status = reason, Status.FINISHED

    @property
    def position(self) -> int:
        """Pixels decided, as published."""
        while True:
            place = self._place
            position = int(place.position[0])
            # If the image finished meanwhile, its slot may already be another's: read the copy.
            if self._place is place:
                return position

    def read(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Copy pixels ``start … stop``, none past ``position``: ``[stop - start, C]``."""
        while True:
            place = self._place
            pixels = place.pixels[start:stop].copy()
            if self._place is place:  # as above
                return pixels

    def shown(self, position: int) -> NDArray[np.uint8]:
        """Copy it as far as a ``position`` that it has reached, and what is known past it."""
        pixels = self._given.copy()
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
        spec: Spec,
        clock: Clock = time.perf_counter,
        caller: str = "",
        size: int | None = None,
    ) -> None:
        self.id = f"gen_{secrets.token_hex(12)}"
        # What is shown where nothing is drawn yet: what is known, or blanks that take no memory.
        given = np.broadcast_to(np.uint8(0), (config.pixels, config.channels))
        if spec.canvas is not None and spec.known is not None:
            given = np.where(spec.known[:, None], spec.canvas, np.uint8(0))
            spec = replace(spec, canvas=given)
        self.model, self.config, self.spec, self.caller = model, config, spec, caller
        self.size = spec.n * spec.slots if size is None else size
        nowhere = Place(given, np.zeros(1, np.int32))
        seeds = [image_seed(spec.seed, j) for j in range(spec.n)]
        labels = [spec.label] * spec.n
        if spec.any_label:
            labels = [random_label(seed, len(config.classes)) for seed in seeds]
        self.images = [
            Image(j, seed, nowhere, label)
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
        self.changes = 0  # how often there was news
        # Dicts as sets in order: one reader of thousands leaves as quickly as any.
        self._waiters: dict[Callable[[], None], None] = {}  # for any news
        self._enders: dict[Callable[[], None], None] = {}  # for the end alone
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

    def pixels_left(self) -> list[int]:
        """Give, for each slot that its images have, the pixels to go until it is free."""
        running = [i for i in self.images[: self.next_index] if i.status is Status.RUNNING]
        return [self.config.pixels - i.position for i in running for _ in range(self.spec.slots)]

    @property
    def demand(self) -> int:
        """Count the slots that its unfinished images have or want, of its size."""
        return self.size * self.unfinished // self.spec.n

    @property
    def drawn(self) -> int:
        """Count the pixels that were drawn, leaving out the known ones that prefill absorbed."""
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
        collapsed = [one for one in each if one is not None and one.least < COLLAPSED]
        if not collapsed:
            return []
        return [
            f"in {len(collapsed)} of {len(self.images)} images one particle had all the weight at "
            "some place, so what is known there guided little before it: ask for more particles, "
            "or leave fewer rows between what is known above and below"
        ]

    def when_news(self, callback: Callable[[], None], seen: int | None = None) -> None:
        """Call back once at the next change, from the engine's thread; at once if finished.

        At once, too, if there was a change since ``changes`` was ``seen``.
        """
        with self._lock:
            if not self.finished and seen in (None, self.changes):
                self._waiters[callback] = None
                return
        callback()

    def when_finished(self, callback: Callable[[], None]) -> None:
        """Call back once at the end, from the engine's thread; at once if finished."""
        with self._lock:
            if not self.finished:
                self._enders[callback] = None
                return
        callback()

    def forget(self, callback: Callable[[], None]) -> None:
        """Call this one back no more."""
        with self._lock:
            self._waiters.pop(callback, None)
            self._enders.pop(callback, None)

    def wake(self) -> None:
        """Tell everyone who waits for news that there is some (the engine's thread)."""
        with self._lock:
            self.changes += 1
            waiters, self._waiters = self._waiters, {}
        for callback in waiters:
            callback()

    def finish(self, now: float) -> None:
        """Mark the generation finished (the engine's thread, once)."""
        with self._lock:
            self.ended = now
            self._waiters |= self._enders
            self._enders = {}
        self.wake()
