"""The engine: a thread owns a decoder; its loop is launch → publish → admit → land → weigh."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import numpy as np

from scanline.model.decoders.base import SYNCHRONOUS_SLOTS, Decoder, InputBatch
from scanline.service.engine.generation import (
    CanvasView,
    Clock,
    FinishReason,
    Generation,
    Image,
    ParticleStats,
    Status,
)
from scanline.service.engine.pipeline import StepPipeline
from scanline.service.engine.progress import Observer, ProgressTracker
from scanline.service.engine.protocol import (
    DRAWING_FAILED,
    cancel_abandoned,
    close_and_wait,
    fail_all,
)
from scanline.service.engine.queue import Queue, QueueLimits
from scanline.service.engine.slots import RunningImage, SlotAllocator

log = logging.getLogger("scanline.engine")

ADMIT_AT_ONCE = 64, 320  # slots given out between two steps, at least and at most
ADMIT_SHARE = 8  # an eighth of all slots is given out at once, within those bounds
FAILURES = 8  # in a row, after which the decoder is tried by itself
STUCK_SECONDS = 60.0  # after which a step will not end any more


class Engine:
    """Draws the generations of its ``queue``, thousands of images at once, until closed.

    ``spare`` of the decoder's slots are for small requests alone, while large ones have the rest.
    """

    def __init__(
        self,
        name: str,
        decoder: Decoder,
        limits: QueueLimits,
        observer: Observer | None = None,
        clock: Clock = time.perf_counter,
        spare: int = 0,
    ) -> None:
        self.name, self.decoder, self.config = name, decoder, decoder.config
        self.slots = self.max_slots_per_image = (
            decoder.max_slots - spare
        )  # that anyone, or one image, may have
        self.total_slots = decoder.max_slots  # those kept for small requests among them
        self.backend, self.variant, self.memory = decoder.backend, decoder.variant, decoder.memory
        self.queue = Queue(name, decoder.config, limits, clock)
        self._progress = ProgressTracker(self.queue, observer, clock)
        self._slots = SlotAllocator(decoder.config, decoder.max_slots, spare)
        self._published = np.zeros(decoder.max_slots, np.int32)  # positions, for readers
        self._places = [
            CanvasView(canvas, self._published[slot : slot + 1])
            for slot, canvas in enumerate(decoder.canvas)
        ]
        self._pipeline = StepPipeline(decoder, self.queue, observer, clock)
        self.broken = False  # nothing will be drawn any more until the process is started again
        self._failures = 0  # of the decoder, since it last drew
        self._began: float | None = None  # when the loop did, if it has work
        self._thread = threading.Thread(target=self._run, name=f"engine-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, drain: float) -> None:
        """Close the queue, which says how, and wait for the thread to end; from another thread."""
        close_and_wait(self.queue, drain, self._thread, f"a step of the {self.backend} backend")

    @property
    def slots_in_use(self) -> int:
        """Count the slots that images hold."""
        return self.total_slots - len(self._slots.free)

    @property
    def running(self) -> int:
        """Count the images running."""
        return len(self._slots)

    @property
    def alive(self) -> bool:
        """Whether the thread runs and takes work."""
        return self._thread.is_alive() and not self.queue.closed and not self.stuck

    @property
    def stuck(self) -> bool:
        """Whether it has been at one step for so long that this will hardly end."""
        began = self._began
        return began is not None and time.monotonic() - began > STUCK_SECONDS

    def _run(self) -> None:
        try:
            while self.queue.wait_for_work():
                self._began = time.monotonic()
                self._turn()
                self._began = None
        except Exception:
            log.critical("the engine of %s met a bug", self.name, exc_info=True)
            self.broken, self._began = True, None
            fail_all(self.queue, self._end)

    def _turn(self) -> None:
        cancel_abandoned(self.queue, self._end)
        try:
            # On a device steps run while the host publishes and admits.
            leave = self._launch()
            self._publish()
            self._admit()
            self._pipeline.synchronize(leave)
            self._weigh()
        except Exception:
            # The decoder's state is in doubt for every image it held, and for no other.
            log.exception("a step failed; ending the generations it touched")
            self._pipeline.discard()
            self._fail(set(self._slots.leads))
            self._give_up_if_broken()

    def _give_up_if_broken(self) -> None:
        self._failures += 1
        self.broken = self.broken or self.decoder.broken
        if self._failures >= FAILURES and not self.broken:
            self.broken = not self._draws()
        if self.broken:
            log.critical("the %s backend can draw no more", self.backend)
            self.queue.close(0.0)

    def _draws(self) -> bool:
        """Whether a plain image can be drawn: or else it is not what was asked for that fails."""
        slot = self._slots.free[-1:]
        try:
            self.decoder.begin(slot, InputBatch.empty(self.config, 1))
            self.decoder.step(slot, 1)
        except Exception:
            log.exception("a plain image fails too")
            return False
        self._failures = 0
        return True

    def _fail(self, generations: set[Generation]) -> None:
        log.error("ended with an error: %s", ", ".join(sorted(one.id for one in generations)))
        for generation in generations:
            generation.error = DRAWING_FAILED
            self._end(generation, FinishReason.ERROR)

    def _end(self, generation: Generation, reason: FinishReason) -> None:
        """Finish every image of a generation that is not finished yet."""
        self.queue.withdraw(generation)
        for lead in tuple(self._slots.leads.get(generation, ())):
            self._release(lead, reason)
        for image in generation.images:
            if image.status is not Status.FINISHED:
                self._progress.finish_image(generation, image, reason, None)
        self.queue.finish(generation)

    def _admit(self) -> None:
        """Give free slots to waiting images, callers in turn."""
        if not self.queue.waiting:
            return
        least, most = ADMIT_AT_ONCE
        most = min(max(least, self.slots // ADMIT_SHARE), most)
        runs = self._slots
        free, time_share = len(runs.free) - runs.spare, self._pipeline.time_share
        taken = self.queue.admit(
            free, most, runs.spare, runs.largest_demand, time_share.prefill_budget,
            light=time_share.may_prefill(True), heavy=time_share.may_prefill(False) or not
            runs.light,
        )  # fmt: skip
        if not taken:
            return
        needed = sum(one.generation.spec.slots for one in taken)
        self._published[runs.free[-needed:]] = 0  # before a reader is shown them
        begun, failed = list[RunningImage](), set[Generation]()
        for one in taken:
            try:
                begun.append(runs.add(one))
            except Exception:
                log.exception("an image cannot be begun; ending its generation")
                failed.add(one.generation)
        if failed:
            self._fail(failed)
            begun = [run for run in begun if run.generation not in failed]
        for run in begun:
            run.image.start(self._places[run.slots[0]])
            self._progress.begin(run.generation)
        if not begun:
            return
        try:
            self._load(begun)
        except Exception:
            log.exception("loading images failed; ending their generations")
            self._fail({run.generation for run in begun})
            self._give_up_if_broken()

    def _load(self, runs: list[RunningImage]) -> None:
        config = self.decoder.config
        inputs = InputBatch.empty(config, len(runs))
        inputs.seed[:] = [run.image.seed for run in runs]
        for row, run in enumerate(runs):
            spec, image = run.generation.spec, run.image
            if spec.canvas is not None and spec.known is not None:
                inputs.canvas[row], inputs.known[row] = spec.canvas, spec.known
            inputs.temperature[row], inputs.top_p[row] = spec.temperature, spec.top_p
            inputs.label[row], inputs.guidance[row] = image.label, spec.guidance
            if run.twins:
                inputs.twin[row] = run.twins[0]
        some = self._slots.light
        self._pipeline.begin(
            [run.slots[0] for run in runs], inputs, [run.generation in some for run in runs]
        )
        for run in runs:
            if run.particles is not None:
                run.particles.begin(self.decoder)

    def _launch(self) -> int:
        """Start as many pixels as fit into a short step, of the light generations or the others.

        The others' images stay where they are meanwhile. Returns how many launches may stay in
        flight.
        """
        if not self._slots:
            self._pipeline.discard()
            return 0
        config, positions = self.decoder.config, self.decoder.scheduled_positions
        light_ones, heavy_ones = self._slots.groups
        callers = [len({one.caller for one in group}) for group in (light_ones, heavy_ones)]
        light = self._pipeline.time_share.light_runs_next(*callers)
        group = light_ones if light else heavy_ones
        alone, particles, room = self._slots.next_batch(group, positions)
        slots = np.concatenate([alone, particles])
        if not len(slots):
            return max(self._pipeline.in_flight - 1, 0)
        left = config.pixels - positions[slots]
        n = min(self._pipeline.time_share.budgets[light].max_pixels(len(slots)), config.pixels)
        if (
            by_row := len(slots) <= SYNCHRONOUS_SLOTS
        ):  # row by row: of more, what a step costs would count
            n = min(n, config.width)
        if self.queue.waiting:  # stop where the first slot comes free, unless that is soon
            n = min(n, max(int(left.min()), n // 2, 1))
        # Particles stop where they are weighed; the others need not wait for that.
        self._pipeline.launch([(alone, n), (particles, min(n, room))], light=light)
        # Particles are weighed at rest, and the first pixel of few is shown as soon as may be.
        new = by_row and any(one.first_pixel is None for one in self._slots.owners[alone].tolist())
        return 0 if len(particles) or new else self.decoder.max_in_flight - 1

    def _weigh(self) -> None:
        """Weigh the particles of every image that has come to a place for it."""
        for run in self._slots.by_lead.values() if self._slots.particle_images else ():
            if run.particles is not None:
                run.particles.update(self.decoder, self._show_in(run.image))

    def _show_in(self, image: Image) -> Callable[[int, int], None]:
        """Give what shows an image in another of its slots, whose position is published too."""
        return lambda slot, changed: image.switch_view(self._places[slot], changed)

    def _publish(self) -> None:
        """Move positions forward, finish what is complete, and wake the readers of what moved."""
        slots = np.fromiter(self._slots.by_lead, np.int32, len(self._slots))
        moved = slots[self._published[slots] != self.decoder.positions[slots]]
        self._failures = 0 if len(moved) else self._failures
        np.copyto(self._published, self.decoder.positions)
        news: dict[Generation, None] = dict.fromkeys(self._slots.owners[moved].tolist())
        failed: set[Generation] = set()
        for lead in slots[self._published[slots] == self.decoder.config.pixels].tolist():
            generation = self._slots.by_lead[lead].generation
            try:
                self._release(lead, FinishReason.LENGTH)
            except Exception:
                log.exception("an image cannot be finished; ending its generation")
                failed.add(generation)
        for generation in news:
            if generation in failed:
                continue
            try:
                self._progress.advance(generation)
            except Exception:
                log.exception("what is new cannot be told; ending its generation")
                failed.add(generation)
        if unfinished := {generation for generation in failed if not generation.finished}:
            self._fail(unfinished)

    def _release(self, lead: int, reason: FinishReason) -> None:
        """Finish an image that runs, and take its slots back."""
        run, bits = self._slots.by_lead[lead], None
        if reason is FinishReason.LENGTH:
            slot = lead
            if (particles := run.particles) is not None:
                particles.finish(self.decoder, self._show_in(run.image))
                run.image.particles = ParticleStats(
                    particles.effective_size, particles.min_effective_size, particles.log_evidence
                )
                slot = int(particles.slots[particles.displayed])
            bits = float(self.decoder.bits[slot].sum(dtype=np.float64))
        self._slots.remove(lead)  # first, whatever those who are told do
        self._progress.finish_image(run.generation, run.image, reason, bits)
