"""The engine: one thread owns one decoder, and its loop reads launch → publish → admit → land."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from model.decoder import Decoder
from model.noise import image_noise
from service.generation import FinishReason, Generation, Image, Place, Request, Status

log = logging.getLogger("scanline.engine")

STEP_SECONDS = 0.015  # how long one call of the decoder may keep a new image waiting
ADMIT_AT_ONCE = 64  # images taken in between two steps, so that a crowd does not stall the rest,
ADMIT_SHARE = 32  # or one slot in so many, where that is more
FIRST_READER_SECONDS = 5.0  # a generation that nobody has come to read by then is cancelled


class QueueFullError(Exception):
    """There is no room for these images now; ``retry_after`` seconds is when there should be."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"the queue is full; try again in {retry_after} s")
        self.retry_after = retry_after


class ClosedError(Exception):
    """The engine takes no more work: the server is shutting down."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Everything that is bounded: images waiting, and finished ones kept for replay.

    ``grace`` is how many seconds a generation goes on after its last reader left.
    """

    max_waiting: int = 4096
    keep_finished: int = 4096
    keep_seconds: float = 300.0
    grace: float = 5.0


class _Step(NamedTuple):
    """A call of the decoder: so many slots by so many pixels, ``drawn`` of them in all.

    It ``began`` at that ``time.perf_counter``, and the launch alone took so many seconds.
    """

    slots: int
    pixels: int
    drawn: int
    began: float
    took: float


class Observer(Protocol):
    """Hears what happens, for metrics; called on the engine's thread, so it must be quick."""

    def admitted(self, waited: float) -> None: ...
    def first_pixel(self, after: float) -> None: ...
    def stepped(self, seconds: float, pixels: int, slots: int) -> None: ...
    def finished(self, reason: FinishReason) -> None: ...


class Engine:
    """Draws the generations given to ``submit``, thousands of images at once, until closed.

    ``submit``, ``cancel``, ``find`` and ``reading`` may be called from any thread.
    """

    def __init__(
        self, name: str, decoder: Decoder, limits: Limits, observer: Observer | None = None
    ) -> None:
        self.name, self.decoder, self.limits = name, decoder, limits
        self._observer = observer
        self._free = list(range(decoder.max_slots - 1, -1, -1))
        self._running: dict[int, tuple[Generation, Image]] = {}
        self._drawing: dict[Generation, int] = {}  # how many of its images run
        self._published = np.zeros(decoder.max_slots, np.int32)  # positions, for readers
        self._queue: deque[Generation] = deque()  # those with images not yet admitted
        self._live: dict[str, Generation] = {}
        self._leaving: set[Generation] = set()  # cancelled, or without a reader
        self._finished: OrderedDict[str, Generation] = OrderedDict()
        self._waiting = 0  # images
        self._kept = 0  # images of finished generations
        self._pixel_seconds = STEP_SECONDS  # what one pixel of all running images takes,
        self._measured = 1  # when there are so many of them
        self._rate = 0.0  # pixels drawn a second while busy
        self._closing: float | None = None  # when what still runs is told to end
        self._work = threading.Condition()  # guards the queue, the registry and _closing
        self._thread = threading.Thread(target=self._run, name=f"engine-{name}", daemon=True)

    # --- any thread -------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, request: Request) -> Generation:
        """Queue a request, or raise ``QueueFullError`` or ``ClosedError``."""
        generation = Generation(self.name, self.decoder.config, request)
        with self._work:
            self._check_room(request.n)
            generation.queue_position = self._waiting
            # Until its first reader comes it counts as abandoned: nothing runs for nobody.
            wait = max(self.limits.grace, FIRST_READER_SECONDS)
            generation.abandoned = time.monotonic() + wait
            self._queue.append(generation)
            self._live[generation.id] = generation
            self._leaving.add(generation)
            self._waiting += request.n
            self._work.notify()
        return generation

    def check_room(self, n: int) -> None:
        """Raise what ``submit`` would raise for ``n`` images now."""
        with self._work:
            self._check_room(n)

    def cancel(self, generation: Generation) -> None:
        """End a generation: its waiting images at once, its running ones within a step."""
        with self._work:
            generation.cancelled = True
            self._leaving.add(generation)
            self._work.notify()

    def find(self, identifier: str) -> Generation | None:
        """Give a live generation, or a finished one that is still kept."""
        with self._work:
            self._forget_old()
            return self._live.get(identifier) or self._finished.get(identifier)

    @contextlib.contextmanager
    def reading(self, generation: Generation, grace: float | None = None) -> Iterator[None]:
        """Count as a reader inside the block; the last to leave lets the generation go.

        ``grace`` seconds without a reader cancel it, by default the limits' own.
        """
        with self._work:
            generation.readers += 1
            generation.abandoned = None
            if not generation.cancelled:
                self._leaving.discard(generation)
        try:
            yield
        finally:
            with self._work:
                generation.readers -= 1
                if generation.readers == 0:
                    wait = self.limits.grace if grace is None else grace
                    generation.abandoned = time.monotonic() + wait
                    self._leaving.add(generation)
                    self._work.notify()

    def close(self, drain: float) -> None:
        """Take no more work, give what there is ``drain`` seconds to finish, then end the rest.

        Closing once more can make the time shorter, never longer.
        """
        with self._work:
            end = time.monotonic() + drain
            self._closing = end if self._closing is None else min(end, self._closing)
            self._work.notify()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def slots_in_use(self) -> int:
        """Count the images running."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Count the images waiting."""
        return self._waiting

    @property
    def alive(self) -> bool:
        """Whether the thread runs and takes work."""
        return self._thread.is_alive() and self._closing is None

    def _check_room(self, n: int) -> None:
        if self._closing is not None:
            raise ClosedError("the server is shutting down; send the request to another one")
        if self._waiting + n > self.limits.max_waiting:
            backlog = (self._waiting + len(self._running)) * self.decoder.config.pixels
            seconds = backlog / self._rate if self._rate else 1.0
            raise QueueFullError(retry_after=int(min(max(seconds, 1.0), 120.0)))

    def _forget_old(self) -> None:
        oldest_kept = time.monotonic() - self.limits.keep_seconds
        while self._finished:
            first = next(iter(self._finished.values()))
            assert first.ended is not None
            if self._kept <= self.limits.keep_finished and first.ended >= oldest_kept:
                return
            self._finished.popitem(last=False)
            self._kept -= first.request.n

    # --- the engine's thread ----------------------------------------------------------------

    def _run(self) -> None:
        while self._await_work():
            self._drop_cancelled()
            try:
                # On a device a step runs while the host publishes and admits.
                step = self._launch()
                self._publish()
                self._admit()
                self._land(step)
            except Exception:
                # The decoder's state is in doubt for every image it held, and for no other.
                log.exception("a step failed; ending the generations it touched")
                self._fail({generation for generation, _ in self._running.values()})

    def _await_work(self) -> bool:
        """Sleep until there is something to do; False once closing and nothing is left."""
        with self._work:
            while not self._live:
                if self._closing is not None:
                    return False
                self._work.wait()
            if self._closing is not None and time.monotonic() >= self._closing:
                for generation in self._live.values():
                    generation.error = "the server is shutting down; send the request again"
                    generation.cancelled = True
                self._leaving |= set(self._live.values())
        return True

    def _drop_cancelled(self) -> None:
        now = time.monotonic()
        with self._work:
            for generation in self._leaving:
                if generation.abandoned is not None and now >= generation.abandoned:
                    generation.cancelled = True
            dropped = [g for g in self._leaving if g.cancelled and not g.finished]
            self._leaving = {g for g in self._leaving if not (g.cancelled or g.finished)}
        for generation in dropped:
            reason = FinishReason.ERROR if generation.error else FinishReason.CANCELLED
            self._end(generation, reason)

    def _fail(self, generations: set[Generation]) -> None:
        for generation in generations:
            generation.error = "drawing failed inside the server; send the request again"
            self._end(generation, FinishReason.ERROR)

    def _end(self, generation: Generation, reason: FinishReason) -> None:
        """Finish every image of a generation that is not finished yet."""
        with self._work:
            if generation in self._queue:
                self._queue.remove(generation)
                self._waiting -= generation.request.n - generation.next_index
        for image in generation.images:
            if image.status is Status.RUNNING:
                self._release(image.slot, reason)
            elif image.status is Status.WAITING:
                self._finish_image(generation, image, reason, None)
        self._finish(generation)

    def _admit(self) -> None:
        """Give free slots to waiting images, one of each generation in turn."""
        taken: list[tuple[int, Generation, Image]] = []
        with self._work:
            most = max(ADMIT_AT_ONCE, self.decoder.max_slots // ADMIT_SHARE)
            while self._queue and self._free and len(taken) < most:
                generation = self._queue.popleft()
                image = generation.images[generation.next_index]
                generation.next_index += 1
                self._waiting -= 1
                if generation.next_index < generation.request.n:
                    self._queue.append(generation)
                slot = self._free.pop()
                self._running[slot] = (generation, image)
                self._drawing[generation] = self._drawing.get(generation, 0) + 1
                taken.append((slot, generation, image))
        if not taken:
            return
        now = time.monotonic()
        for slot, generation, image in taken:
            if generation.started is None:
                generation.started = now
                if self._observer:
                    self._observer.admitted(now - generation.created)
            self._published[slot] = 0
            image.run(slot, Place(self.decoder.canvas[slot], self._published[slot : slot + 1]))
        try:
            self._load(taken)
        except Exception:
            log.exception("loading images failed; ending their generations")
            self._fail({generation for _, generation, _ in taken})

    def _load(self, taken: list[tuple[int, Generation, Image]]) -> None:
        config = self.decoder.config
        T, C = config.pixels, config.channels
        slots = np.array([slot for slot, _, _ in taken], np.int32)
        requests = [generation.request for _, generation, _ in taken]
        nothing, none = np.zeros((T, C), np.uint8), np.zeros(T, np.bool_)
        self.decoder.reset(slots)
        self.decoder.load(
            slots,
            np.stack([nothing if r.canvas is None else r.canvas for r in requests]),
            np.stack([none if r.known is None else r.known for r in requests]),
            np.stack([image_noise(image.seed, T, config.draws) for _, _, image in taken]),
            np.array([r.temperature for r in requests], np.float32),
            np.array([r.label for r in requests], np.int32),
        )
        lengths = np.array([r.prefix for r in requests], np.int32)
        if lengths.any():
            self.decoder.prefill(slots, lengths)

    def _launch(self) -> _Step | None:
        """Start as many pixels of every running image as fit into one short call."""
        if not self._running:
            return None
        config = self.decoder.config
        slots = np.fromiter(self._running, np.int32, len(self._running))
        left = config.pixels - self.decoder.positions[slots]
        joined = max(1.0, len(slots) / self._measured)  # a crowd may take that much longer
        n = min(max(1, int(STEP_SECONDS / (self._pixel_seconds * joined))), config.width)
        if self._waiting:  # stop where the first slot comes free, unless that is soon
            n = min(n, max(int(left.min()), n // 2, 1))
        began = time.perf_counter()
        self.decoder.launch(slots, n)
        took = time.perf_counter() - began
        return _Step(len(slots), n, int(np.minimum(left, n).sum()), began, took)

    def _land(self, step: _Step | None) -> None:
        """Wait until the step is done, and measure what the decoder took."""
        if step is None:
            return
        landing = time.perf_counter()
        self.decoder.land()
        now = time.perf_counter()
        took = step.took + now - landing  # what was done meanwhile costs nothing on a device
        if step.drawn:
            self._pixel_seconds, self._measured = max(took / step.pixels, 1e-7), step.slots
            rate = step.drawn / max(now - step.began, 1e-7)
            self._rate = rate if not self._rate else 0.95 * self._rate + 0.05 * rate
        if self._observer:
            self._observer.stepped(took, step.drawn, step.slots)

    def _publish(self) -> None:
        """Move positions forward, finish what is complete, and wake the readers."""
        np.copyto(self._published, self.decoder.positions)
        now = time.monotonic()
        drawing = list(self._drawing)
        slots = np.fromiter(self._running, np.int32, len(self._running))
        for slot in slots[self._published[slots] == self.decoder.config.pixels].tolist():
            self._release(slot, FinishReason.LENGTH)
        for generation in drawing:
            if generation.first_pixel is None and generation.drawn:
                generation.first_pixel = now
                if self._observer:
                    self._observer.first_pixel(now - generation.created)
            if generation.unfinished:
                generation.wake()
            else:
                self._finish(generation)

    def _release(self, slot: int, reason: FinishReason) -> None:
        generation, image = self._running.pop(slot)
        drawn = reason is FinishReason.LENGTH
        bits = float(self.decoder.bits[slot].sum(dtype=np.float64)) if drawn else None
        self._finish_image(generation, image, reason, bits)
        self._free.append(slot)
        self._drawing[generation] -= 1
        if not self._drawing[generation]:
            del self._drawing[generation]

    def _finish_image(
        self, generation: Generation, image: Image, reason: FinishReason, bits: float | None
    ) -> None:
        image.finish(reason, bits)
        generation.unfinished -= 1
        if self._observer:
            self._observer.finished(reason)

    def _finish(self, generation: Generation) -> None:
        with self._work:
            del self._live[generation.id]
            self._finished[generation.id] = generation
            self._kept += generation.request.n
            generation.finish(time.monotonic())
            self._forget_old()
