"""Who waits, who runs, who has finished: the generations of one engine, safe from any thread."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from scanline.model.config import ModelConfig
from scanline.service.engine.fair_queue import Admission, FairQueue
from scanline.service.engine.generation import Clock, Generation, GenerationSpec
from scanline.service.engine.queue_snapshot import QueueSnapshot
from scanline.service.engine.result_cache import ResultCache

log = logging.getLogger("scanline.engine")

NEW_CALLER_RESERVE = (
    8  # an eighth of the places is never filled by a caller who has images waiting already
)
SMALL_REQUEST_RESERVE = 32  # a 32nd of the places is never filled by a large request
LARGE_REQUEST = 256  # a request of more images than a 256th of the places is large
RESULT_CACHE_BYTES = 1 << 28  # of finished images
MAX_RETRY_AFTER = 120.0  # seconds after which to try again, at most
RATE_TIME_CONSTANT = 0.3  # of drawing, by which the rate follows
CLOSED_MESSAGE = "the server is shutting down; send the request to another one"
FIRST_READER_SECONDS = 5.0  # a generation that nobody has come to read by then is cancelled


class QueueFullError(Exception):
    """There is no room for these images now; ``retry_after`` seconds is when there should be."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"the queue is full; try again in {retry_after} s")
        self.retry_after = retry_after


class ClosedError(Exception):
    """The engine takes no more work: the server is shutting down."""


@dataclass(frozen=True, kw_only=True)
class QueueLimits:
    """Everything that is bounded: images waiting, and finished ones kept for replay.

    Of large images fewer are kept, as many as ``RESULT_CACHE_BYTES`` hold. ``grace`` is how many
    seconds a
    generation goes on after its last reader left.
    """

    max_waiting: int = 4096
    keep_finished: int = 4096
    keep_seconds: float = 300.0
    grace: float = 5.0

    @property
    def keeps_results(self) -> bool:
        """Whether a generation can be read once it has finished."""
        return self.keep_finished > 0 and self.keep_seconds > 0


class Queue:
    """Generations from ``submit`` to the end of their time for replay, fair between callers.

    Any thread may call what comes first here, the engine's thread alone what comes after.
    ``rate`` is how many pixels its slots draw a second, twins among them. Whenever there is
    something to do, ``on_change`` is called, from any thread and quickly.
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
        self.waiting = 0  # images
        self.rate = 0.0
        self._name, self._config, self._clock = name, config, clock
        self._fair_queue = FairQueue()
        self._live: dict[str, Generation] = {}
        self._abandoned: set[Generation] = set()  # cancelled, or without a reader
        # What was drawn, and of a request of one image what was given of it, and which of that.
        largest = 2 * config.dims + config.pixels
        most = min(limits.keep_finished, max(RESULT_CACHE_BYTES // largest, 1))
        self._results = ResultCache(most, limits.keep_seconds)
        self._closing: float | None = None  # when what still runs is told to end
        self._drains = False  # what runs was given time to finish
        self._cached_snapshot: QueueSnapshot | None = None  # the last one made
        self._changed = threading.Condition()  # guards all of this but the rate

    # --- any thread -------------------------------------------------------------------------

    def submit(
        self,
        spec: GenerationSpec,
        *,
        caller: str = "",
        request_slots: int | None = None,
        detached: bool = False,
    ) -> Generation:
        """Queue what is asked for, or raise ``QueueFullError`` or ``ClosedError``.

        ``caller`` and ``size`` are a ``Generation``'s. What is ``detached`` is drawn though nobody
        reads it, all else for a reader who comes within the grace time, or within a moment.
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

    def reattach(self, generation: Generation, caller: str = "") -> bool:
        """Let a generation go on for a reader who is to come; False if it was cancelled.

        A ``caller`` who has nothing waiting need not wait for the turns of the one who began it.
        """
        with self._changed:
            if generation.cancelled:
                return False
            self._fair_queue.transfer(generation, caller)
            if not generation.finished and not generation.readers:
                self._await_reader(generation)
            return True

    def detach(self, generation: Generation) -> None:
        """Have a generation drawn though nobody reads it."""
        with self._changed:
            generation.detached = True
            generation.expires = None
            if not generation.cancelled:
                self._abandoned.discard(generation)

    def _await_reader(self, generation: Generation) -> None:
        if not generation.detached:
            # Until a reader comes its time runs: nothing runs for nobody.
            generation.expires = self._clock() + max(self.limits.grace, FIRST_READER_SECONDS)
            self._abandoned.add(generation)

    def estimate_wait(self, generation: Generation) -> tuple[int, float]:
        """Count the images that come before a waiting one's first, and estimate the seconds.

        As the queue stood a moment ago: thousands of waiting streams ask every few seconds.
        """
        with self._changed:
            # One that came since then has the place that it was told.
            ahead = self._snapshot().positions.get(generation.id, generation.queue_position)
            return ahead, self._seconds_until_admitted(ahead + 1)

    def waiting_slots(self) -> int:
        """Count the slots that the waiting images want."""
        with self._changed:
            return sum(one.waiting * one.spec.slots for one in self._fair_queue)

    def check_capacity(self, n: int, caller: str = "") -> None:
        """Raise what ``submit`` would raise for ``n`` images now."""
        with self._changed:
            if self.closed:
                raise ClosedError(CLOSED_MESSAGE)
            most = self.limits.max_waiting
            if self.waiting:  # or one caller's, or large requests, would shut others out
                if self._fair_queue.has_waiting(caller):
                    most -= most // NEW_CALLER_RESERVE
                elif n > max(1, most // LARGE_REQUEST):
                    most -= most // SMALL_REQUEST_RESERVE
            if self.waiting + n > most:
                seconds = self._seconds_until_admitted(self.waiting + n - most)
                raise QueueFullError(retry_after=math.ceil(min(max(seconds, 1.0), MAX_RETRY_AFTER)))

    def cancel(self, generation: Generation) -> None:
        """End a generation: its waiting images at once, its running ones within a step."""
        with self._changed:
            if not generation.finished:  # or a repeat of its request would be drawn anew
                generation.cancelled = True
                self._release(generation)

    def find(self, identifier: str) -> Generation | None:
        """Give a live generation, or a finished one that is still kept."""
        with self._changed:
            return self._live.get(identifier) or self._results.get(identifier, self._clock())

    @contextlib.contextmanager
    def reading(self, generation: Generation, grace: float | None = None) -> Iterator[None]:
        """Count as a reader inside the block; the last to leave lets the generation go.

        ``grace`` seconds without a reader cancel it, by default the limits' own.
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
        """Take no more work, give what there is ``drain`` seconds to finish, then end the rest.

        Closing once more can make the time shorter, never longer.
        """
        with self._changed:
            end, self._drains = self._clock() + drain, drain > 0
            self._closing = end if self._closing is None else min(end, self._closing)
            self._notify()

    @property
    def closed(self) -> bool:
        """Whether no more work is taken."""
        return self._closing is not None

    def _snapshot(self) -> QueueSnapshot:
        now = self._clock()
        if self._cached_snapshot is None or not self._cached_snapshot.is_fresh(now):
            self._cached_snapshot = QueueSnapshot.take(self._fair_queue, self._live.values(), now)
        return self._cached_snapshot

    def _seconds_until_admitted(self, images: int) -> float:
        """Estimate when so many of the images that wait will have slots, at the present rate."""
        return self._snapshot().estimate_seconds(images, self._config.pixels, self.rate)

    def _release(self, generation: Generation) -> None:
        if not generation.finished:
            self._abandoned.add(generation)
            self._notify()

    def _notify(self) -> None:
        self._changed.notify()
        self._on_change()

    # --- the engine's thread ----------------------------------------------------------------

    def wait_for_work(self) -> bool:
        """Sleep until there is something to do; False once closed and nothing is left."""
        with self._changed:
            while not self._live and not self.closed:
                self._changed.wait()
            return self.check_drain()

    def check_drain(self) -> bool:
        """Cancel everything once the drain time is over; False once closed and nothing is left."""
        with self._changed:
            if self._closing is not None and self._clock() >= self._closing:
                cut = [one for one in self._live.values() if not one.cancelled]
                if cut and self._drains:
                    log.warning(
                        "%s: %d images of %d requests are cut off, for the time to drain is over; "
                        "SCANLINE_DRAIN_SECONDS gives more",
                        self._name, sum(one.unfinished for one in cut), len(cut),
                    )  # fmt: skip
                for generation in self._live.values():
                    generation.error = "the server is shutting down; send the request again"
                    generation.closed = generation.cancelled = True
                    self._abandoned.add(generation)
            return bool(self._live) or not self.closed

    def update_rate(self, pixels: int, seconds: float) -> None:
        """Learn the rate from pixels that all slots together drew in so many seconds."""
        known, rate = self.rate, pixels / max(seconds, 1e-7)
        share = seconds / (seconds + RATE_TIME_CONSTANT)
        self.rate = known + share * (rate - known) if known else rate

    def pop_abandoned(self) -> list[Generation]:
        """Give those to end now, cancelled or left by their readers for too long; each once."""
        now = self._clock()
        with self._changed:
            for generation in self._abandoned:
                if generation.expires is not None and now >= generation.expires:
                    generation.cancelled = True
            abandoned = [generation for generation in self._abandoned if generation.cancelled]
            self._abandoned.difference_update(abandoned)
        return abandoned

    def admit(
        self,
        free: int,
        most: int,
        spare: int = 0,
        largest_demand: int = 0,
        known: float = math.inf,
        *,
        light: bool = True,
        heavy: bool = True,
    ) -> list[Admission]:
        """Take waiting images for the ``free`` slots, as ``FairQueue.choose`` says."""
        with self._changed:
            taken = self._fair_queue.choose(
                free=free, most=most, spare=spare, largest_demand=largest_demand, known=known,
                light=light, heavy=heavy,
            )  # fmt: skip
            self.waiting -= len(taken)
        return taken

    def withdraw(self, generation: Generation) -> None:
        """Take none of a generation's images any more."""
        with self._changed:
            if generation in self._fair_queue:
                self._fair_queue.remove(generation)
                self.waiting -= generation.waiting

    def finish(self, generation: Generation) -> None:
        """Mark a generation finished, and keep it for replay."""
        with self._changed:
            del self._live[generation.id]
            self._abandoned.discard(generation)
            now = self._clock()
            generation.finish(now)
            self._results.add(generation, now)
