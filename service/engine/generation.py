"""Generations: requests in progress, whose changes the engine announces to their readers."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from scanline.model.config import ModelConfig
from scanline.model.noise import image_seed
from scanline.model.particles import COLLAPSED
from scanline.model.sampling import SamplingParams
from scanline.service.engine.image import CanvasView, FinishReason, Image, Status
from scanline.service.engine.provenance import Provenance

Clock = Callable[[], float]  # monotonic seconds; an engine and its queue share one clock


class GenerationStatus(StrEnum):
    """Status of a generation; the last three are final."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True, eq=False)
class GenerationSpec:
    """Specification of a generation: ``n`` images, where image ``j`` has seed ``seed + j``.

    Attributes:
        n: Number of images.
        seed: Seed of the first image.
        sampling: How the values are sampled.
        canvas: Values of the known pixels, uint8 ``[T, C]``, or None if no pixel is known.
        known: Mask of the known pixels, bool ``[T]``, or None if no pixel is known.
    """

    n: int
    seed: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    canvas: NDArray[np.uint8] | None = None
    known: NDArray[np.bool_] | None = None

    @cached_property
    def slots_per_image(self) -> int:
        """Number of slots per image, twins included."""
        return self.sampling.slots_per_image

    @cached_property
    def prefix(self) -> int:
        """Number of known pixels before the first unknown one, which may be prefilled."""
        if self.known is None:
            return 0
        return int(self.known.size if self.known.all() else self.known.argmin())

    @cached_property
    def given_digest(self) -> str | None:
        """SHA-256 of the mask and the known pixels in hexadecimal, None if no pixel is known."""
        if self.known is None or self.canvas is None or not self.known.any():
            return None
        kept = np.where(self.known[:, None], self.canvas, np.uint8(0))
        return hashlib.sha256(np.packbits(self.known).tobytes() + kept.tobytes()).hexdigest()

    @property
    def prefill_pixels(self) -> int:
        """Number of pixels to prefill per image, if it is prefilled; with a twin, twice as many."""
        return self.prefix * (2 if self.sampling.guided else 1)


class Generation:
    """One request in progress; any thread may read it.

    The generation's queue and the engine thread write it. Times are seconds of ``clock``.

    Args:
        model: Name of the model.
        config: The model's config.
        spec: What to draw.
        clock: Source of all times.
        caller: Client that this generation is scheduled for.
        request_slots: Slots that all images of the client's request need. By default the slots of
            ``spec``; more on a replica, which draws only some of the request's images.
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
        # A broadcast array takes no memory, so a generation without known pixels costs little.
        initial = np.broadcast_to(np.uint8(0), (config.pixels, config.channels))
        if spec.canvas is not None and spec.known is not None:
            initial = np.where(spec.known[:, None], spec.canvas, np.uint8(0))
            spec = replace(spec, canvas=initial)
        self.model, self.config, self.spec, self.caller = model, config, spec, caller
        self.request_slots = (
            spec.n * spec.slots_per_image if request_slots is None else request_slots
        )
        initial_view = CanvasView(initial, np.zeros(1, np.int32))
        seeds = [image_seed(spec.seed, j) for j in range(spec.n)]
        labels = [spec.sampling.image_label(config, seed) for seed in seeds]
        self.images = [
            Image(j, seed, initial_view, label)
            for j, (seed, label) in enumerate(zip(seeds, labels, strict=True))
        ]
        self.next_index = 0  # index of the first image that is not admitted yet
        self.unfinished = spec.n
        self.queue_position = 0  # images ahead in the queue when it was submitted
        self.clock = clock
        self.created = clock()
        self.started: float | None = None  # when the first image was admitted
        self.prefilled: float | None = None  # when its first images' known pixels were prefilled
        self.first_pixel: float | None = None
        self.ended: float | None = None
        self.error: str | None = None  # message for the client if images ended in an error
        self.provenance: Provenance | None = None  # for recipes; None writes none
        self.closed = False  # ended because the server shuts down
        self.cancelled = False
        self.detached = False  # runs to its end even without a reader
        self.readers = 0
        self.expires: float | None = None  # when it is cancelled unless a reader attaches
        self.version = 0  # number of changes so far
        # Dicts serve as ordered sets, so that one of thousands of callbacks is removed in O(1).
        self._change_callbacks: dict[Callable[[], None], None] = {}
        self._done_callbacks: dict[Callable[[], None], None] = {}
        self._lock = threading.Lock()

    @property
    def finished(self) -> bool:
        """True if all images have finished, so that nothing changes any more."""
        return self.ended is not None

    @property
    def status(self) -> GenerationStatus:
        """Status of the generation as a whole."""
        if not self.finished:
            waits = self.started is None
            return GenerationStatus.WAITING if waits else GenerationStatus.RUNNING
        if self.error is not None:
            return GenerationStatus.FAILED
        cancelled = any(i.finish_reason is FinishReason.CANCELLED for i in self.images)
        return GenerationStatus.CANCELLED if cancelled else GenerationStatus.FINISHED

    @property
    def waiting(self) -> int:
        """Number of images that are not admitted yet."""
        return self.spec.n - self.next_index

    def remaining_pixels(self) -> list[int]:
        """Return the number of pixels left for each slot that the running images hold."""
        running = [i for i in self.images[: self.next_index] if i.status is Status.RUNNING]
        return [
            self.config.pixels - i.position
            for i in running
            for _ in range(self.spec.slots_per_image)
        ]

    @property
    def slot_demand(self) -> int:
        """Number of slots that the request's unfinished images hold or wait for."""
        return self.request_slots * self.unfinished // self.spec.n

    @property
    def drawn_pixels(self) -> int:
        """Number of pixels drawn so far, without the known prefix."""
        prefix = self.spec.prefix
        return sum(max(0, image.position - prefix) for image in self.images)

    def bits_per_dim(self, image: Image) -> float | None:
        """Return the exact bits/dim of a complete image under the model, else None.

        All values count, known ones included, at temperature 1 and given the image's label.
        """
        return None if image.bits is None else round(image.bits / self.config.dims, 4)

    @property
    def warnings(self) -> list[str]:
        """Warnings for the client about options that had no or little effect."""
        spec = self.spec
        if spec.sampling.particles > 1 and (
            spec.known is None or not spec.known[spec.prefix :].any()
        ):
            return [
                "`particles` has no effect here, because no known pixel follows the first drawn "
                "one; it only costs time, so leave it out"
            ]
        each = (image.particles for image in self.images)
        collapsed = [one for one in each if one is not None and one.min_effective_size < COLLAPSED]
        if not collapsed:
            return []
        return [
            f"in {len(collapsed)} of {len(self.images)} images a single particle took all the "
            "weight, so the known pixels below had little influence on the pixels above; use more "
            "`particles`, or leave fewer unknown rows between known ones"
        ]

    def add_change_callback(self, callback: Callable[[], None], seen: int | None = None) -> None:
        """Call ``callback`` once at the next change, from the engine thread.

        If the generation has finished, or ``version`` is no longer ``seen``, the callback is called
        at once, from this thread.
        """
        with self._lock:
            if not self.finished and seen in (None, self.version):
                self._change_callbacks[callback] = None
                return
        callback()

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once at the end, or at once if the generation has finished.

        It must not block, because the engine's thread calls it and holds the queue's lock.
        """
        with self._lock:
            if not self.finished:
                self._done_callbacks[callback] = None
                return
        callback()

    def remove_callback(self, callback: Callable[[], None]) -> None:
        """Remove a callback, if it is still registered."""
        with self._lock:
            self._change_callbacks.pop(callback, None)
            self._done_callbacks.pop(callback, None)

    def notify(self) -> None:
        """Count a change, and call the change callbacks. Engine thread only."""
        with self._lock:
            self.version += 1
            callbacks, self._change_callbacks = self._change_callbacks, {}
        for callback in callbacks:
            callback()

    def finish(self, now: float) -> None:
        """Mark the generation as finished, and call all callbacks. Engine thread only, once."""
        with self._lock:
            self.ended = now
            self._change_callbacks |= self._done_callbacks
            self._done_callbacks = {}
        self.notify()
