"""Engine that draws on replicas: the queue is local, and replicas draw the images.

A replica sends new pixels, which this engine writes to the images, so readers notice no difference.
If a replica dies, another one draws its unfinished images again from their seeds. It sends nothing
until it has passed the last received pixel, and the bytes after that are the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from dataclasses import dataclass, replace

import numpy as np
import torch
from prometheus_client import Metric

from scanline.model.config import ModelConfig
from scanline.service.distributed.heartbeats import HeartbeatMonitor, is_cancelled
from scanline.service.distributed.messages import (
    ImageUpdate,
    ItemUpdates,
    ReplicaClient,
    ReplicaReport,
    UpdateStream,
    WorkItem,
)
from scanline.service.engine.fair_queue import AdmissionLimits
from scanline.service.engine.generation import Clock, Generation
from scanline.service.engine.image import CanvasView, FinishReason, Image, Status
from scanline.service.engine.progress import Observer, ProgressTracker
from scanline.service.engine.protocol import (
    DRAWING_FAILED,
    cancel_abandoned,
    close_and_wait,
    fail_all,
)
from scanline.service.engine.queue import Queue
from scanline.service.engine.queue_limits import QueueLimits

log = logging.getLogger("scanline.cluster")

MAX_ITEM_IMAGES = 16  # small enough to spread a request, large enough to send updates together
# One image in addition to every 8 slots waits at a replica, so that no slot is idle for the time of
# a message.
OVERSUBSCRIPTION = 8
TICK_SECONDS = 0.05  # between two checks of deadlines
MAX_TRIES = 4  # consecutive tries of a work item that draw no pixel


@dataclass(eq=False)
class _Assignment:
    """A work item at a replica.

    Attributes:
        tries: Number of consecutive tries, including this one, that drew no pixel.
    """

    generation: Generation
    images: list[Image]
    tries: int = 1


class DistributedEngine:
    """Draws the generations of its ``queue`` on replicas (an ``EngineProtocol``).

    Args:
        name: Name of the model.
        config: The model's config.
        replicas: Client of the model's replicas.
        max_slots: Number of slots that each replica is configured to have.
        limits: Bounds of the queue.
        observer: Receiver of events, for metrics.

    Attributes:
        ready: Event that is set once a replica has reported.
        broken: Whether a bug has ended the engine. Lost replicas do not.
    """

    def __init__(
        self,
        name: str,
        config: ModelConfig,
        replicas: ReplicaClient,
        max_slots: int,
        limits: QueueLimits,
        observer: Observer | None = None,
    ) -> None:
        self.name, self.config, self._max_slots = name, config, max_slots
        self._clock: Clock = time.perf_counter
        self.queue = Queue(name, config, limits, self._clock, self._notify)
        self._heartbeats = HeartbeatMonitor(
            name, replicas, self.queue.waiting_slots, self._on_reports, self._clock
        )
        self.ready = self._heartbeats.ready
        self._replicas = replicas
        self._progress = ProgressTracker(self.queue, observer, self._clock)
        self._loop = asyncio.new_event_loop()
        self._wake = asyncio.Event()
        self._tasks: dict[_Assignment, asyncio.Task[None]] = {}
        self._assigned: dict[Image, bool] = {}  # images at replicas: whether in spare slots
        self._in_use = {False: 0, True: 0}  # slots in use: all others, and spare ones
        self._images_assigned: dict[Generation, int] = {}
        self._drawn = 0  # pixels of all slots since the last report
        self.broken = False
        self._bug: BaseException | None = None  # exception of a background task
        self._thread = threading.Thread(target=self._run, name=f"distributed-{name}", daemon=True)

    def start(self) -> None:
        """Start the engine thread."""
        self._thread.start()

    def close(self, drain: float) -> None:
        """Close the queue (see ``Queue.close``), and wait for the engine thread to end."""
        close_and_wait(self.queue, drain, self._thread, "the assignment of images to replicas")

    # --- any thread -------------------------------------------------------------------------

    @property
    def reports(self) -> dict[str, ReplicaReport]:
        """Last report of each live replica, by the replica's name."""
        return self._heartbeats.reports

    @property
    def max_slots_per_image(self) -> int:
        """Number of slots that one image may use: limited by the smallest replica."""
        return min([self._max_slots, *(report.slots for report in self.reports.values())])

    @property
    def slots(self) -> int:
        """Number of slots of all replicas that any request may use."""
        return sum(report.slots for report in self.reports.values())

    @property
    def total_slots(self) -> int:
        """Number of all slots of all replicas, including the spare ones."""
        return sum(report.slots + report.spare for report in self.reports.values())

    @property
    def memory(self) -> int:
        """Bytes of memory for slots: 0, because the replicas hold them."""
        return 0

    @property
    def slots_in_use(self) -> int:
        """Number of slots that images at replicas hold."""
        return sum(self._in_use.values())

    @property
    def running(self) -> int:
        """Number of images at replicas."""
        return len(self._assigned)

    @property
    def backend(self) -> str:
        """Name of the replicas' decoder backend, or "none" without replicas."""
        return self._from_any_report("backend")

    @property
    def variant(self) -> str:
        """Everything but the model that a seed's bytes depend on, or "none" without replicas."""
        return self._from_any_report("variant")

    @property
    def likelihood_device(self) -> torch.device:
        """The CPU, because the decoders' devices are those of the replicas."""
        return torch.device("cpu")

    @property
    def arithmetic(self) -> int | None:
        """Version of the replicas' arithmetic, as in ``Decoder``; None without replicas."""
        return next((report.arithmetic for report in self.reports.values()), None)

    @property
    def slow(self) -> bool:
        """True if a replica draws many times slower than a usual machine."""
        return any(report.slow for report in self.reports.values())

    @property
    def alive(self) -> bool:
        """True if there is a replica and the queue accepts work."""
        return self._thread.is_alive() and not self.queue.closed and bool(self.reports)

    @property
    def stuck(self) -> bool:
        """Always False: Ray restarts a replica that hangs."""
        return False

    def metrics(self) -> dict[str, list[Metric]]:
        """Return the metrics in each replica's last report."""
        return {name: report.metrics for name, report in self.reports.items()}

    def _from_any_report(self, field: str) -> str:
        return next((str(getattr(report, field)) for report in self.reports.values()), "none")

    # --- engine thread ----------------------------------------------------------------------

    def _notify(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop may be closed
            self._loop.call_soon_threadsafe(self._wake.set)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._work())
        except Exception:
            log.critical("bug in the distributed engine of %s", self.name, exc_info=True)
            self.broken = True
            fail_all(self.queue, self._end)

    async def _work(self) -> None:
        heartbeats = asyncio.create_task(self._heartbeats.run())
        heartbeats.add_done_callback(self._propagate_error)
        while self.queue.check_drain():
            self._wake.clear()
            if self._bug is not None:
                raise self._bug
            cancel_abandoned(self.queue, self._end)
            self._admit()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), TICK_SECONDS)
        heartbeats.cancel()

    def _on_reports(self, seconds: float) -> None:
        """Update the queue's rate, ``seconds`` after the previous reports."""
        if self._drawn:
            self.queue.update_rate(self._drawn, seconds)
        self._drawn = 0
        self._wake.set()

    def _fail(self, generation: Generation) -> None:
        generation.error = DRAWING_FAILED
        self._end(generation, FinishReason.ERROR)

    def _end(self, generation: Generation, reason: FinishReason) -> None:
        """Finish all images of a generation that have not finished yet."""
        self.queue.withdraw(generation)
        for assignment, task in list(self._tasks.items()):
            if assignment.generation is generation:
                task.cancel()
        for image in generation.images:
            if image.status is not Status.FINISHED:
                self._finish_image(generation, image, reason, None)
        self.queue.finish(generation)

    def _admit(self) -> None:
        """Assign waiting images to replicas that have room."""
        if not self.reports:
            return
        spare = sum(report.spare for report in self.reports.values()) - self._in_use[True]
        free = self.slots + self.slots // OVERSUBSCRIPTION - self._in_use[False]
        free, spare = max(free, 0), max(spare, 0)
        largest = max((one.slot_demand for one in self._images_assigned), default=0)
        limits = AdmissionLimits(
            free=free, spare=spare, at_once=free + spare, largest_demand=largest
        )
        admitted: dict[Generation, list[Image]] = {}
        for generation, image, is_spare in self.queue.admit(limits):
            admitted.setdefault(generation, []).append(image)
            self._assigned[image] = is_spare
            self._in_use[is_spare] += generation.spec.slots_per_image
            self._images_assigned[generation] = self._images_assigned.get(generation, 0) + 1
            canvas = np.zeros((self.config.pixels, self.config.channels), np.uint8)
            image.start(CanvasView(canvas, np.zeros(1, np.int32)))
        for generation, images in admitted.items():
            self._progress.begin(generation)
            if generation.provenance is not None:  # there may have been no replica before
                generation.provenance = replace(generation.provenance, arithmetic=self.arithmetic)
            size = min(MAX_ITEM_IMAGES, -(-len(images) // len(self.reports)))
            for first in range(0, len(images), size):
                self._assign(_Assignment(generation, images[first : first + size]))

    def _assign(self, assignment: _Assignment) -> None:
        task = asyncio.get_running_loop().create_task(self._draw(assignment))
        self._tasks[assignment] = task
        task.add_done_callback(lambda _: self._tasks.pop(assignment))
        task.add_done_callback(self._propagate_error)

    def _propagate_error(self, task: asyncio.Task[None]) -> None:
        """Make the main loop raise the exception of a background task."""
        if not task.cancelled() and task.exception() is not None:
            self._bug = task.exception()
            self._wake.set()

    async def _draw(self, assignment: _Assignment) -> None:
        """Draw an assignment on a replica, and assign its unfinished images again."""
        generation, images = assignment.generation, assignment.images
        stream: UpdateStream | None = None
        failure = "its stream ended early"
        while True:
            try:
                if stream is None:
                    stream = self._replicas.draw(
                        WorkItem.of(generation, images, self._heartbeats.reproducibility)
                    )
                updates = await anext(stream)
            except StopAsyncIteration:
                break
            except (Exception, asyncio.CancelledError) as error:  # anything if a process dies
                if is_cancelled(error):
                    if stream is not None:
                        stream.cancel()
                    raise
                failure = next(iter(str(error).splitlines()), type(error).__name__)
                break
            try:
                self._apply_updates(assignment, updates)
            except Exception:  # a bug here, which another replica would not avoid
                log.exception(
                    "%s: cannot apply updates of %s; ending the generation",
                    self.name, generation.id,
                )  # fmt: skip
                stream.cancel()
                if not generation.finished:
                    self._fail(generation)
                return
        unfinished = [image for image in images if image.status is not Status.FINISHED]
        if not unfinished:
            return
        subject = f"{self.name}: {len(unfinished)} images of {generation.id}"
        if assignment.tries == MAX_TRIES:
            log.error("%s failed %d times; giving up: %s", subject, MAX_TRIES, failure)
            self._fail(generation)
            return
        log.warning("%s are drawn again by another replica: %s", subject, failure)
        self._progress.redraw(len(unfinished))
        if assignment.tries > 1:
            await self._heartbeats.wait_for_next()
        for consecutive in _split_consecutive(unfinished):
            self._assign(_Assignment(generation, consecutive, assignment.tries + 1))

    def _apply_updates(self, assignment: _Assignment, updates: ItemUpdates) -> None:
        generation = assignment.generation
        for update in updates:
            image = assignment.images[update.image]
            if image.status is Status.FINISHED:
                continue
            if (stop := update.start + len(update.pixels)) > image.position:
                assignment.tries = 1
                # The known prefix is prefilled, so it does not count as drawn.
                pixels = max(0, stop - max(image.position, generation.spec.prefix))
                self._drawn += pixels * generation.spec.slots_per_image
            self._apply_update(generation, image, update)
        self._progress.advance(generation)

    def _apply_update(self, generation: Generation, image: Image, update: ImageUpdate) -> None:
        image.write(update.start, update.pixels, update.revisions)
        if update.result is not None and update.result.reason is FinishReason.LENGTH:
            image.particles = update.result.particles
            self._finish_image(generation, image, update.result.reason, update.result.bits)

    def _finish_image(
        self, generation: Generation, image: Image, reason: FinishReason, bits: float | None
    ) -> None:
        # Free the slots first, so that they are free even if an observer raises.
        if image in self._assigned:
            self._in_use[self._assigned.pop(image)] -= generation.spec.slots_per_image
            self._images_assigned[generation] -= 1
            if not self._images_assigned[generation]:
                del self._images_assigned[generation]
            self._wake.set()
        self._progress.finish_image(generation, image, reason, bits)


def _split_consecutive(images: list[Image]) -> list[list[Image]]:
    """Split images into runs of consecutive indices."""
    runs: list[list[Image]] = []
    for image in images:
        if runs and runs[-1][-1].index == image.index - 1:
            runs[-1].append(image)
        else:
            runs.append([image])
    return runs
