"""Engine: one thread that owns a decoder and draws the generations of a queue.

The loop is launch → publish → admit → synchronize → update particles.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import numpy as np

from scanline.model.decoders.base import SYNCHRONOUS_SLOTS, Decoder, InputBatch
from scanline.service.engine.fair_queue import AdmissionLimits
from scanline.service.engine.generation import Clock, Generation
from scanline.service.engine.image import CanvasView, FinishReason, Image, ParticleStats, Status
from scanline.service.engine.pipeline import StepPipeline
from scanline.service.engine.progress import Observer, ProgressTracker
from scanline.service.engine.protocol import (
    DRAWING_FAILED,
    cancel_abandoned,
    close_and_wait,
    fail_all,
)
from scanline.service.engine.queue import Queue
from scanline.service.engine.queue_limits import QueueLimits
from scanline.service.engine.slots import RunningImage, SlotAllocator

log = logging.getLogger("scanline.engine")

# To bound the delay for running images, at most 1/8 of all slots are handed out between two steps
# (but at least 64 and at most 320).
ADMIT_SHARE = 8
MIN_ADMITTED_SLOTS, MAX_ADMITTED_SLOTS = 64, 320
MAX_FAILURES = 8  # consecutive failed steps before the decoder is tested with a plain image
STUCK_SECONDS = 60.0  # a step that takes longer will probably never end


class Engine:
    """Draws the generations of its ``queue``, thousands of images at once, until it is closed.

    Args:
        name: Name of the model.
        decoder: Decoder to draw with.
        limits: Bounds of the queue.
        observer: Receiver of events, for metrics.
        clock: Source of all times.
        spare: Number of the decoder's slots that are kept for small requests, so that these need
            not wait for a large one.

    Attributes:
        broken: Whether the engine cannot draw again in this process.
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
        self.slots = self.max_slots_per_image = decoder.max_slots - spare
        self.total_slots = decoder.max_slots
        self.backend, self.variant, self.memory = decoder.backend, decoder.variant, decoder.memory
        self.arithmetic, self.likelihood_device = decoder.arithmetic, decoder.likelihood_device
        self.slow = decoder.slow
        self.queue = Queue(name, decoder.config, limits, clock)
        self._progress = ProgressTracker(self.queue, observer, clock)
        self._slots = SlotAllocator(decoder.config, decoder.max_slots, spare)
        self._published = np.zeros(decoder.max_slots, np.int32)  # positions that readers see
        self._views = [
            CanvasView(canvas, self._published[slot : slot + 1])
            for slot, canvas in enumerate(decoder.canvas)
        ]
        self._pipeline = StepPipeline(decoder, self.queue, observer, clock)
        self.broken = False
        self._failures = 0  # failed steps since the decoder last drew a pixel
        self._iteration_began: float | None = None  # start of the current iteration of the loop
        self._thread = threading.Thread(target=self._run, name=f"engine-{name}", daemon=True)

    def start(self) -> None:
        """Start the engine thread."""
        self._thread.start()

    def close(self, drain: float) -> None:
        """Close the queue (see ``Queue.close``), and wait for the engine thread to end."""
        close_and_wait(self.queue, drain, self._thread, f"a step of the {self.backend} backend")

    @property
    def slots_in_use(self) -> int:
        """Number of slots that running images hold."""
        return self.total_slots - len(self._slots.free)

    @property
    def running(self) -> int:
        """Number of running images."""
        return len(self._slots)

    @property
    def alive(self) -> bool:
        """True if the engine thread runs and accepts work."""
        return self._thread.is_alive() and not self.queue.closed and not self.stuck

    @property
    def stuck(self) -> bool:
        """True if the current step takes longer than ``STUCK_SECONDS``."""
        began = self._iteration_began
        return began is not None and time.monotonic() - began > STUCK_SECONDS

    def _run(self) -> None:
        try:
            while self.queue.wait_for_work():
                self._iteration_began = time.monotonic()
                self._iterate()
                self._iteration_began = None
        except Exception:
            log.critical("bug in the engine of %s", self.name, exc_info=True)
            self.broken, self._iteration_began = True, None
            fail_all(self.queue, self._end)

    def _iterate(self) -> None:
        cancel_abandoned(self.queue, self._end)
        try:
            # On a GPU, a step runs while the host publishes the previous one and admits images.
            remaining = self._launch()
            self._publish()
            self._admit()
            self._pipeline.synchronize(remaining)
            self._update_particles()
        except Exception:
            # Every image in the decoder may be corrupt. Waiting images are not affected.
            log.exception("a step failed; ending all running generations")
            self._pipeline.discard()
            self._fail(set(self._slots.leads))
            self._check_decoder()

    def _check_decoder(self) -> None:
        """Count a failure, and close the queue if the decoder cannot draw any more."""
        self._failures += 1
        self.broken = self.broken or self.decoder.broken
        if self._failures >= MAX_FAILURES and not self.broken:
            self.broken = not self._draws_plain_image()
        if self.broken:
            log.critical("the %s backend cannot draw any more", self.backend)
            self.queue.close(0.0)

    def _draws_plain_image(self) -> bool:
        """Return True if a default image can be drawn, so that only certain requests fail."""
        slot = self._slots.free[-1:]
        try:
            self.decoder.begin(slot, InputBatch.empty(self.config, 1))
            self.decoder.step(slot, 1)
        except Exception:
            log.exception("an image with default options fails too")
            return False
        self._failures = 0
        return True

    def _fail(self, generations: set[Generation]) -> None:
        log.error("generations failed: %s", ", ".join(sorted(one.id for one in generations)))
        for generation in generations:
            generation.error = DRAWING_FAILED
            self._end(generation, FinishReason.ERROR)

    def _end(self, generation: Generation, reason: FinishReason) -> None:
        """Finish all images of a generation that have not finished yet."""
        self.queue.withdraw(generation)
        for lead in tuple(self._slots.leads.get(generation, ())):
            self._release(lead, reason)
        for image in generation.images:
            if image.status is not Status.FINISHED:
                self._progress.finish_image(generation, image, reason, None)
        self.queue.finish(generation)

    def _admit(self) -> None:
        """Start waiting images in free slots."""
        if not self.queue.waiting:
            return
        slots, time_share = self._slots, self._pipeline.time_share
        admitted = self.queue.admit(
            AdmissionLimits(
                free=len(slots.free) - slots.spare,
                spare=slots.spare,
                at_once=min(max(MIN_ADMITTED_SLOTS, self.slots // ADMIT_SHARE), MAX_ADMITTED_SLOTS),
                prefill_pixels=time_share.prefill_budget,
                min_prefill=self.decoder.min_prefill,
                largest_demand=slots.largest_demand,
                prefill_small=time_share.may_prefill(True),
                prefill_large=time_share.may_prefill(False) or not slots.small,
            )
        )
        if not admitted:
            return
        needed = sum(one.generation.spec.slots_per_image for one in admitted)
        self._published[slots.free[-needed:]] = 0  # before readers see the slots
        started, failed = list[RunningImage](), set[Generation]()
        for one in admitted:
            try:
                started.append(slots.add(one))
            except Exception:
                log.exception("cannot start an image; ending its generation")
                failed.add(one.generation)
        if failed:
            self._fail(failed)
            started = [one for one in started if one.generation not in failed]
        for running in started:
            running.image.start(self._views[running.slots[0]])
            self._progress.begin(running.generation)
        if not started:
            return
        try:
            self._load(started)
        except Exception:
            log.exception("cannot load images into the decoder; ending their generations")
            self._fail({one.generation for one in started})
            self._check_decoder()

    def _load(self, images: list[RunningImage]) -> None:
        """Load the inputs of new images into the decoder."""
        inputs = InputBatch.empty(self.decoder.config, len(images))
        inputs.seed[:] = [one.image.seed for one in images]
        for row, one in enumerate(images):
            spec = one.generation.spec
            if spec.canvas is not None and spec.known is not None:
                inputs.canvas[row], inputs.known[row] = spec.canvas, spec.known
            spec.sampling.write_to(inputs, row, one.image.label)
            if one.twins:
                inputs.twin[row] = one.twins[0]
        small_generations = self._slots.small
        small = [one.generation in small_generations for one in images]
        generations = {one.generation for one in images}

        def prefilled() -> None:
            for generation in generations:
                self._progress.prefilled(generation)

        self._pipeline.begin([one.slots[0] for one in images], inputs, small, prefilled)
        for one in images:
            if one.particles is not None:
                one.particles.begin(self.decoder)

    def _launch(self) -> int:
        """Launch a short step of the small or of the large requests.

        Returns:
            Number of steps that may stay in flight while the host goes on.
        """
        if not self._slots:
            self._pipeline.discard()
            return 0
        config, positions = self.decoder.config, self.decoder.scheduled_positions
        time_share = self._pipeline.time_share
        groups = self._slots.groups
        callers = [len({one.caller for one in group}) for group in groups]
        small = time_share.small_runs_next(*callers)
        batch = self._slots.next_batch(groups[0] if small else groups[1], positions)
        slots = np.concatenate([batch.single, batch.particles])
        if not len(slots):
            return max(self._pipeline.in_flight - 1, 0)
        left = config.pixels - positions[slots]
        n = min(time_share.budgets[small].max_pixels(len(slots)), config.pixels)
        # Draw few images row by row, so that viewers see each row. With many images the overhead
        # per step would be too large.
        few = len(slots) <= SYNCHRONOUS_SLOTS
        if few:
            n = min(n, config.width)
        # While images wait, stop where the first slot becomes free, unless that is very soon.
        if self.queue.waiting:
            n = min(n, max(int(left.min()), n // 2, 1))
        # Particles stop where their weights are updated; other images need not.
        particle_pixels = min(n, batch.max_particle_pixels)
        calls = [(batch.single, n), (batch.particles, particle_pixels)]
        self._pipeline.launch(calls, small=small)
        # Particle updates need the step's results, and so does an early display of first pixels.
        owners = self._slots.owners[batch.single].tolist()
        show_first = few and any(one.first_pixel is None for one in owners)
        return 0 if len(batch.particles) or show_first else self.decoder.max_in_flight - 1

    def _update_particles(self) -> None:
        """Update the particle weights of all images that are at an update position."""
        if not self._slots.particle_images:
            return
        for one in self._slots.by_lead.values():
            if one.particles is not None:
                one.particles.update(self.decoder, self._view_switcher(one.image))

    def _view_switcher(self, image: Image) -> Callable[[int, int], None]:
        """Return a function ``(slot, changed)`` that shows ``image`` in another of its slots."""
        return lambda slot, changed: image.switch_view(self._views[slot], changed)

    def _publish(self) -> None:
        """Publish new positions, finish complete images, and notify readers."""
        slots = np.fromiter(self._slots.by_lead, np.int32, len(self._slots))
        moved = slots[self._published[slots] != self.decoder.positions[slots]]
        self._failures = 0 if len(moved) else self._failures
        np.copyto(self._published, self.decoder.positions)
        advanced: dict[Generation, None] = dict.fromkeys(self._slots.owners[moved].tolist())
        failed: set[Generation] = set()
        for lead in slots[self._published[slots] == self.decoder.config.pixels].tolist():
            generation = self._slots.by_lead[lead].generation
            try:
                self._release(lead, FinishReason.LENGTH)
            except Exception:
                log.exception("cannot finish an image; ending its generation")
                failed.add(generation)
        for generation in advanced:
            if generation in failed:
                continue
            try:
                self._progress.advance(generation)
            except Exception:
                log.exception("cannot report progress; ending the generation")
                failed.add(generation)
        if unfinished := {generation for generation in failed if not generation.finished}:
            self._fail(unfinished)

    def _release(self, lead: int, reason: FinishReason) -> None:
        """Finish a running image, and free its slots."""
        running, bits = self._slots.by_lead[lead], None
        if reason is FinishReason.LENGTH:
            slot = lead
            if (particles := running.particles) is not None:
                particles.finish(self.decoder, self._view_switcher(running.image))
                running.image.particles = ParticleStats(
                    particles.effective_size, particles.min_effective_size, particles.log_evidence
                )
                slot = int(particles.slots[particles.displayed])
            bits = float(self.decoder.bits[slot].sum(dtype=np.float64))
        self._slots.remove(lead)  # first, so that the slots are free even if an observer raises
        self._progress.finish_image(running.generation, running.image, reason, bits)
