"""The engine: one thread owns one decoder, and its loop reads launch → publish → admit → land."""

from __future__ import annotations

import logging
import threading
import time
from typing import NamedTuple, Protocol

import numpy as np

from scanline.model.decoders.contract import Decoder, Inputs
from scanline.model.noise import image_noise
from scanline.service.generation import Clock, FinishReason, Generation, Image, Place, Status
from scanline.service.queue import Limits, Queue

log = logging.getLogger("scanline.engine")

STEP_SECONDS = 0.015  # how long one call of the decoder may keep a new image waiting
ADMIT_AT_ONCE = 64  # images taken in between two steps, so that a crowd does not stall the rest,
ADMIT_SHARE = 32  # or one slot in so many, where that is more


class _Step(NamedTuple):
    """A call of the decoder: so many slots by so many pixels, ``drawn`` of them in all.

    It ``began`` at that time of the engine's clock, and the launch alone took so many seconds.
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
    """Draws the generations of its ``queue``, thousands of images at once, until closed."""

    def __init__(
        self,
        name: str,
        decoder: Decoder,
        limits: Limits,
        observer: Observer | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        self.name, self.decoder = name, decoder
        self.queue = Queue(name, decoder.config, limits, clock)
        self._observer, self._clock = observer, clock
        self._free = list(range(decoder.max_slots - 1, -1, -1))
        self._running: dict[int, tuple[Generation, Image]] = {}
        self._drawing: dict[Generation, int] = {}  # how many of its images run
        self._published = np.zeros(decoder.max_slots, np.int32)  # positions, for readers
        self._pixel_seconds = STEP_SECONDS  # what one pixel of all running images takes,
        self._measured = 1  # when there are so many of them
        self._thread = threading.Thread(target=self._run, name=f"engine-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, drain: float) -> None:
        """Close the queue, which says how, and wait for the thread to end; from another thread."""
        self.queue.close(drain)
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def slots_in_use(self) -> int:
        """Count the images running."""
        return len(self._running)

    @property
    def alive(self) -> bool:
        """Whether the thread runs and takes work."""
        return self._thread.is_alive() and not self.queue.closed

    def _run(self) -> None:
        while self.queue.wait():
            self._drop_leavers()
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

    def _drop_leavers(self) -> None:
        for generation in self.queue.leavers():
            reason = FinishReason.ERROR if generation.error else FinishReason.CANCELLED
            self._end(generation, reason)

    def _fail(self, generations: set[Generation]) -> None:
        for generation in generations:
            generation.error = "drawing failed inside the server; send the request again"
            self._end(generation, FinishReason.ERROR)

    def _end(self, generation: Generation, reason: FinishReason) -> None:
        """Finish every image of a generation that is not finished yet."""
        self.queue.withdraw(generation)
        for image in generation.images:
            if image.status is Status.RUNNING:
                self._release(image.slot, reason)
            elif image.status is Status.WAITING:
                self._finish_image(generation, image, reason, None)
        self.queue.finish(generation)

    def _admit(self) -> None:
        """Give free slots to waiting images, one of each generation in turn."""
        most = max(ADMIT_AT_ONCE, self.decoder.max_slots // ADMIT_SHARE)
        taken = self.queue.take(min(most, len(self._free)))
        if not taken:
            return
        now = self._clock()
        for generation, image in taken:
            if generation.started is None:
                generation.started = now
                if self._observer:
                    self._observer.admitted(now - generation.created)
            slot = self._free.pop()
            self._running[slot] = (generation, image)
            self._drawing[generation] = self._drawing.get(generation, 0) + 1
            self._published[slot] = 0
            image.run(slot, Place(self.decoder.canvas[slot], self._published[slot : slot + 1]))
        try:
            self._load(taken)
        except Exception:
            log.exception("loading images failed; ending their generations")
            self._fail({generation for generation, _ in taken})

    def _load(self, taken: list[tuple[Generation, Image]]) -> None:
        config = self.decoder.config
        slots = np.array([image.slot for _, image in taken], np.int32)
        inputs = Inputs.blank(config, len(taken))
        for row, (generation, image) in enumerate(taken):
            spec = generation.spec
            if spec.canvas is not None and spec.known is not None:
                inputs.canvas[row], inputs.known[row] = spec.canvas, spec.known
            inputs.noise[row] = image_noise(image.seed, config.pixels, config.draws)
            inputs.temperature[row], inputs.label[row] = spec.temperature, spec.label
        self.decoder.begin(slots, inputs)

    def _launch(self) -> _Step | None:
        """Start as many pixels of every running image as fit into one short call."""
        if not self._running:
            return None
        config = self.decoder.config
        slots = np.fromiter(self._running, np.int32, len(self._running))
        left = config.pixels - self.decoder.positions[slots]
        joined = max(1.0, len(slots) / self._measured)  # a crowd may take that much longer
        n = min(max(1, int(STEP_SECONDS / (self._pixel_seconds * joined))), config.width)
        if self.queue.waiting:  # stop where the first slot comes free, unless that is soon
            n = min(n, max(int(left.min()), n // 2, 1))
        began = self._clock()
        self.decoder.launch(slots, n)
        took = self._clock() - began
        return _Step(len(slots), n, int(np.minimum(left, n).sum()), began, took)

    def _land(self, step: _Step | None) -> None:
        """Wait until the step is done, and measure what the decoder took."""
        if step is None:
            return
        landing = self._clock()
        self.decoder.land()
        now = self._clock()
        took = step.took + now - landing  # what was done meanwhile costs nothing on a device
        if step.drawn:
            self._pixel_seconds, self._measured = max(took / step.pixels, 1e-7), step.slots
            rate = step.drawn / max(now - step.began, 1e-7)
            known = self.queue.rate
            self.queue.rate = 0.95 * known + 0.05 * rate if known else rate
        if self._observer:
            self._observer.stepped(took, step.drawn, step.slots)

    def _publish(self) -> None:
        """Move positions forward, finish what is complete, and wake the readers."""
        np.copyto(self._published, self.decoder.positions)
        now = self._clock()
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
                self.queue.finish(generation)

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
