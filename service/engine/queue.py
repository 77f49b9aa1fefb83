"""Queue of an engine's generations, from submission until they leave the result cache."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

from scanline.model.config import ModelConfig
from scanline.service.engine.fair_queue import Admission, AdmissionLimits, FairQueue
from scanline.service.engine.generation import Clock, Generation, GenerationSpec
from scanline.service.engine.queue_limits import (
    CLOSED_MESSAGE,
    RESULT_CACHE_BYTES,
    ClosedError,
    QueueLimits,
    RefusedError,
)
from scanline.service.engine.queue_snapshot import QueueSnapshot
from scanline.service.engine.result_cache import ResultCache

log = logging.getLogger("scanline.engine")

# Parts of the waiting room that are reserved, so that neither one caller nor large requests shut
# out the others: 1/8 for callers without waiting images, and 1/32 for small requests. A request
# is large if it alone fills more than 1/256 of the places.
NEW_CALLER_RESERVE = 8
SMALL_REQUEST_RESERVE = 32
LARGE_REQUEST = 256
MAX_RETRY_AFTER = 120.0  # seconds
RATE_TIME_CONSTANT = 0.3  # seconds of drawing over which the measured rate is averaged
FIRST_READER_SECONDS = 5.0  # time for the first reader to attach to a new generation


class QueuedGeneration(NamedTuple):
    """A generation, and the queue that holds it.

    The queue may be that of a model that was replaced, so take it from here and not from the model.
    """

    queue: Queue
    generation: Generation


class Queue:
    """Generations of one engine: waiting, running and recently finished.

    The first group of methods may be called from any thread, the second only from the engine
    thread.

    Args:
        name: Name of the model, for logs.
        config: The model's config.
        limits: Bounds of the queue.
        clock: Source of all times.
        on_change: Called whenever the engine has something to do, from any thread. Must be fast.

    Attributes:
        waiting: Number of waiting images.
        rate: Measured pixels per second of all slots together, twins included.
    """

    def __init__(
        self,
        name: str,
        config: ModelConfig,
        limits: QueueLimits,
        clock: Clock,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.limits = limits
        self._on_change = on_change
        self.waiting = 0
        self.rate = 0.0
        self._name, self._config, self._clock = name, config, clock
        self._fair_queue = FairQueue()
        self._live: dict[str, Generation] = {}  # not finished, by id
        self._abandoned: set[Generation] = set()  # cancelled, or without a reader
        # A finished image holds its pixels; the only image of a request also its canvas and mask.
        image_bytes = 2 * config.dims + config.pixels
        max_images = min(limits.keep_finished, max(RESULT_CACHE_BYTES // image_bytes, 1))
        self._results = ResultCache(max_images, limits.keep_seconds)
        self._drain_deadline: float | None = None  # set by close(); then running images are ended
        self._drains = False  # whether running images were given time to finish
        self._cached_snapshot: QueueSnapshot | None = None
        self._changed = threading.Condition()  # guards everything here except the rate

    # --- any thread -------------------------------------------------------------------------

    def submit(
        self,
        spec: GenerationSpec,
        *,
        caller: str = "",
        request_slots: int | None = None,
        detached: bool = False,
    ) -> Generation:
        """Queue a new generation.

        Args:
            spec: What to draw.
            caller: Client that the generation is scheduled for.
            request_slots: See ``Generation``.
            detached: Draw the generation even without a reader. Otherwise it is cancelled unless a
                reader attaches within the grace time, or within ``FIRST_READER_SECONDS``.

        Raises:
            RefusedError: There is no room for its images.
            ClosedError: The server is shutting down.
        """
        generation = Generation(self._name, self._config, spec, self._clock, caller, request_slots)
        with self._changed:
            self.check_capacity(spec.n, caller)
            generation.queue_position = self._fair_queue.images_before(caller)
            generation.detached = detached
            self._fair_queue.add(generation)
            self._live[generation.id] = generation
            self._await_reader(generation)
            self.waiting += spec.n
            self._notify()
        return generation

    def reattach(self, generation: Generation) -> bool:
        """Keep a generation alive for a new reader; return False if it was cancelled."""
        with self._changed:
            if generation.cancelled:
                return False
            if not generation.finished and not generation.readers:
                self._await_reader(generation)
            return True

    def detach(self, generation: Generation) -> None:
        """Draw a generation even without a reader."""
        with self._changed:
            generation.detached = True
            generation.expires = None
            if not generation.cancelled:
                self._abandoned.discard(generation)

    def _await_reader(self, generation: Generation) -> None:
        if not generation.detached:
            # The generation expires unless a reader attaches in time.
            generation.expires = self._clock() + max(self.limits.grace, FIRST_READER_SECONDS)
            self._abandoned.add(generation)

    def estimate_wait(self, generation: Generation) -> tuple[int, float]:
        """Return the number of images ahead of a waiting generation, and the estimated seconds.

        The answer comes from a cached snapshot, because thousands of waiting streams ask for it
        every few seconds.
        """
        with self._changed:
            # A generation that is newer than the snapshot has its position at submission.
            ahead = self._snapshot().positions.get(generation.id, generation.queue_position)
            return ahead, self._seconds_until_admitted(ahead + 1)

    def unfinished(self, caller: str) -> int:
        """Return the number of a caller's images that are waiting or running."""
        with self._changed:
            return sum(one.unfinished for one in self._live.values() if one.caller == caller)

    def waiting_slots(self) -> int:
        """Return the number of slots that the waiting images need."""
        with self._changed:
            return sum(one.waiting * one.spec.slots_per_image for one in self._fair_queue)

    def check_capacity(self, n: int, caller: str = "") -> None:
        """Raise the error that ``submit`` would raise for ``n`` images of ``caller``."""
        with self._changed:
            if self.closed:
                raise ClosedError(CLOSED_MESSAGE)
            places = self.limits.max_waiting
            if self.waiting:
                if self._fair_queue.has_waiting(caller):
                    places -= places // NEW_CALLER_RESERVE
                elif n > max(1, places // LARGE_REQUEST):
                    places -= places // SMALL_REQUEST_RESERVE
            if self.waiting + n > places:
                seconds = self._seconds_until_admitted(self.waiting + n - places)
                seconds = math.ceil(min(max(seconds, 1.0), MAX_RETRY_AFTER))
                message = f"the queue is full; try again in {seconds} s"
                raise RefusedError(message, code="queue_full", retry_after=seconds)

    def cancel(self, generation: Generation) -> None:
        """Cancel a generation. Its running images end within one step."""
        with self._changed:
            # A finished generation stays valid, so that a repeated request can still get it.
            if not generation.finished:
                generation.cancelled = True
                self._release(generation)

    def find(self, identifier: str) -> Generation | None:
        """Return a live or cached generation by id, or None."""
        with self._changed:
            return self._live.get(identifier) or self._results.get(identifier, self._clock())

    @contextlib.contextmanager
    def reading(self, generation: Generation, grace: float | None = None) -> Iterator[None]:
        """Count as a reader of ``generation`` inside the ``with`` block.

        After the last reader left, the generation is cancelled unless another one attaches within
        ``grace`` seconds (by default ``limits.grace``).
        """
        with self._changed:
            generation.readers += 1
            generation.expires = None
            if not generation.cancelled:
                self._abandoned.discard(generation)
        try:
            yield
        finally:
            with self._changed:
                generation.readers -= 1
                if generation.readers == 0 and not generation.detached:
                    wait = self.limits.grace if grace is None else grace
                    generation.expires = self._clock() + wait
                    self._release(generation)

    def close(self, drain: float) -> None:
        """Accept no more work, and end everything that is not finished within ``drain`` seconds.

        A second call can only bring the deadline forward.
        """
        with self._changed:
            deadline, self._drains = self._clock() + drain, drain > 0
            earlier = self._drain_deadline
            self._drain_deadline = deadline if earlier is None else min(deadline, earlier)
            self._notify()

    @property
    def closed(self) -> bool:
        """True if the queue accepts no more work."""
        return self._drain_deadline is not None

    def _snapshot(self) -> QueueSnapshot:
        now = self._clock()
        if self._cached_snapshot is None or not self._cached_snapshot.is_fresh(now):
            self._cached_snapshot = QueueSnapshot.take(self._fair_queue, self._live.values(), now)
        return self._cached_snapshot

    def _seconds_until_admitted(self, images: int) -> float:
        return self._snapshot().estimate_seconds(images, self._config.pixels, self.rate)

    def _release(self, generation: Generation) -> None:
        if not generation.finished:
            self._abandoned.add(generation)
            self._notify()

    def _notify(self) -> None:
        self._changed.notify()
        self._on_change()

    # --- engine thread ----------------------------------------------------------------------

    def wait_for_work(self) -> bool:
        """Block until there is work; return False once the queue is closed and empty."""
        with self._changed:
            while not self._live and not self.closed:
                self._changed.wait()
            return self.check_drain()

    def check_drain(self) -> bool:
        """Cancel everything if the drain time is over; return False once closed and empty."""
        with self._changed:
            if self._drain_deadline is not None and self._clock() >= self._drain_deadline:
                cut = [one for one in self._live.values() if not one.cancelled]
                if cut and self._drains:
                    log.warning(
                        "%s: stopped %d unfinished images of %d requests, because the drain time "
                        "is over; raise SCANLINE_DRAIN_SECONDS to allow more",
                        self._name, sum(one.unfinished for one in cut), len(cut),
                    )  # fmt: skip
                for generation in self._live.values():
                    generation.error = "the server is shutting down; send the request again"
                    generation.closed = generation.cancelled = True
                    self._abandoned.add(generation)
            return bool(self._live) or not self.closed

    def update_rate(self, pixels: int, seconds: float) -> None:
        """Update the rate with a step that drew ``pixels`` in all slots together."""
        known, rate = self.rate, pixels / max(seconds, 1e-7)
        weight = seconds / (seconds + RATE_TIME_CONSTANT)
        self.rate = known + weight * (rate - known) if known else rate

    def pop_abandoned(self) -> list[Generation]:
        """Return the generations that were cancelled or lost their readers since the last call."""
        now = self._clock()
        with self._changed:
            for generation in self._abandoned:
                if generation.expires is not None and now >= generation.expires:
                    generation.cancelled = True
            abandoned = [generation for generation in self._abandoned if generation.cancelled]
            self._abandoned.difference_update(abandoned)
        return abandoned

    def admit(self, limits: AdmissionLimits) -> list[Admission]:
        """Take the next waiting images within ``limits`` (see ``FairQueue.admit``)."""
        with self._changed:
            admitted = self._fair_queue.admit(limits)
            self.waiting -= len(admitted)
        return admitted

    def withdraw(self, generation: Generation) -> None:
        """Remove a generation's waiting images from the queue."""
        with self._changed:
            if generation in self._fair_queue:
                self._fair_queue.remove(generation)
                self.waiting -= generation.waiting

    def finish(self, generation: Generation) -> None:
        """Mark a generation as finished, and keep it for replay."""
        with self._changed:
            del self._live[generation.id]
            self._abandoned.discard(generation)
            now = self._clock()
            generation.finish(now)
            self._results.add(generation, now)
