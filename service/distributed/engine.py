"""A model drawn by replicas: its queue is here, its images are drawn wherever there is room.

An image here is a canvas and a position, as in an engine, but a replica draws it and tells what is
new. One that dies takes nothing with it: what it had not finished is drawn again by another, from
the same seed, and goes on to the byte where it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from dataclasses import dataclass

import numpy as np
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
from scanline.service.engine.generation import (
    CanvasView,
    Clock,
    FinishReason,
    Generation,
    Image,
    Status,
)
from scanline.service.engine.progress import Observer, ProgressTracker
from scanline.service.engine.protocol import (
    DRAWING_FAILED,
    cancel_abandoned,
    close_and_wait,
    fail_all,
)
from scanline.service.engine.queue import Queue, QueueLimits

log = logging.getLogger("scanline.cluster")

MAX_ITEM_IMAGES = 16  # at most: small enough to spread, large enough to be told of together
OVERSUBSCRIPTION = (
    8  # of so many slots one more image is at its replica, so that none waits for a message
)
TICK_SECONDS = 0.05  # between two looks at what time alone brings
MAX_TRIES = 4  # of an image, without a pixel more


@dataclass(eq=False)
class _Assignment:
    """A part being drawn: its images, and how often that was tried without a pixel more."""

    generation: Generation
    images: list[Image]
    tries: int = 1


class DistributedEngine:
    """Draws the generations of its ``queue`` on replicas, until closed: a ``EngineProtocol``.

    ``most`` is how many slots a replica is to have.
    """

    def __init__(
        self,
        name: str,
        config: ModelConfig,
        replicas: ReplicaClient,
        most: int,
        limits: QueueLimits,
        observer: Observer | None = None,
    ) -> None:
        self.name, self.config, self._most = name, config, most
        self._clock: Clock = time.perf_counter
        self.queue = Queue(name, config, limits, self._clock, self._notify)
        self._heartbeats = HeartbeatMonitor(
            name, replicas, self.queue.waiting_slots, self._heard, self._clock
        )
        self.ready = self._heartbeats.ready  # set once there is a replica
        self._replicas = replicas
        self._progress = ProgressTracker(self.queue, observer, self._clock)
        self._loop = asyncio.new_event_loop()
        self._wake = asyncio.Event()
        self._tasks: dict[_Assignment, asyncio.Task[None]] = {}
        self._held: dict[Image, bool] = {}  # those at replicas; whether in spare slots
        self._in_use = {False: 0, True: 0}  # slots, spare ones and the others
        self._at_replicas: dict[Generation, int] = {}
        self._drawn = 0  # pixels of all slots since the last report
        self.broken = False  # by a bug here: replicas come and go
        self._bug: BaseException | None = None  # what a task raised
        self._thread = threading.Thread(target=self._run, name=f"distributed-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, drain: float) -> None:
        """Close the queue, which says how, and wait for the thread to end; from another thread."""
        close_and_wait(self.queue, drain, self._thread, "what gives its images to replicas")

    # --- what the routes ask ------------------------------------------------------------------

    @property
    def reports(self) -> dict[str, ReplicaReport]:
        """The replicas that there are, by name."""
        return self._heartbeats.reports

    @property
    def max_slots_per_image(self) -> int:
        """Count the slots that one image may take at most: no more than the least replica has."""
        return min([self._most, *(report.slots for report in self.reports.values())])

    @property
    def slots(self) -> int:
        """Count the slots that anyone may have, of all replicas."""
        return sum(report.slots for report in self.reports.values())

    @property
    def total_slots(self) -> int:
        """Count the slots of all replicas, those kept for small requests among them."""
        return sum(report.slots + report.spare for report in self.reports.values())

    @property
    def memory(self) -> int:
        """None here: the replicas take it."""
        return 0

    @property
    def slots_in_use(self) -> int:
        """Count the slots that images hold."""
        return sum(self._in_use.values())

    @property
    def running(self) -> int:
        """Count the images at replicas."""
        return len(self._held)

    @property
    def backend(self) -> str:
        """The kind of the replicas' decoders."""
        return self._any("backend")

    @property
    def variant(self) -> str:
        """All that the replicas' results depend on beside the model."""
        return self._any("variant")

    @property
    def alive(self) -> bool:
        """Whether there is a replica, and work is taken."""
        return self._thread.is_alive() and not self.queue.closed and bool(self.reports)

    @property
    def stuck(self) -> bool:
        """Never: a replica that hangs is no longer healthy, and Ray's to end."""
        return False

    def metrics(self) -> dict[str, list[Metric]]:
        """Give the replicas' own metrics, as they last reported them."""
        return {name: report.metrics for name, report in self.reports.items()}

    def _any(self, fact: str) -> str:
        return next((str(getattr(one, fact)) for one in self.reports.values()), "none")

    # --- the thread ---------------------------------------------------------------------------

    def _notify(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed once all is over
            self._loop.call_soon_threadsafe(self._wake.set)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._work())
        except Exception:
            log.critical("the fleet of %s met a bug", self.name, exc_info=True)
            self.broken = True
            fail_all(self.queue, self._end)

    async def _work(self) -> None:
        meeting = asyncio.create_task(self._heartbeats.run())
        meeting.add_done_callback(self._propagate_error)
        while self.queue.check_drain():
            self._wake.clear()
            if self._bug is not None:
                raise self._bug
            cancel_abandoned(self.queue, self._end)
            self._admit()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), TICK_SECONDS)
        meeting.cancel()

    def _heard(self, seconds: float) -> None:
        """Take reports, so long after those before."""
        if self._drawn:
            self.queue.update_rate(self._drawn, seconds)
        self._drawn = 0
        self._wake.set()

    def _fail(self, generation: Generation) -> None:
        generation.error = DRAWING_FAILED
        self._end(generation, FinishReason.ERROR)

    def _end(self, generation: Generation, reason: FinishReason) -> None:
        """Finish every image of a generation that is not finished yet."""
        self.queue.withdraw(generation)
        for part, task in list(self._tasks.items()):
            if part.generation is generation:
                task.cancel()
        for image in generation.images:
            if image.status is not Status.FINISHED:
                self._finish_image(generation, image, reason, None)
        self.queue.finish(generation)

    def _admit(self) -> None:
        """Give what room the replicas have to waiting images, callers in turn."""
        if not self.reports:
            return
        spare = sum(report.spare for report in self.reports.values()) - self._in_use[True]
        free = self.slots + self.slots // OVERSUBSCRIPTION - self._in_use[False]
        free, spare = max(free, 0), max(spare, 0)
        heaviest = max((one.slot_demand for one in self._at_replicas), default=0)
        new: dict[Generation, list[Image]] = {}
        for generation, image, is_spare in self.queue.admit(free, free + spare, spare, heaviest):
            new.setdefault(generation, []).append(image)
            self._held[image] = is_spare
            self._in_use[is_spare] += generation.spec.slots
            self._at_replicas[generation] = self._at_replicas.get(generation, 0) + 1
            canvas = np.zeros((self.config.pixels, self.config.channels), np.uint8)
            image.start(CanvasView(canvas, np.zeros(1, np.int32)))
        for generation, images in new.items():
            self._progress.begin(generation)
            size = min(MAX_ITEM_IMAGES, -(-len(images) // len(self.reports)))
            for first in range(0, len(images), size):
                self._assign(_Assignment(generation, images[first : first + size]))

    def _assign(self, part: _Assignment) -> None:
        task = asyncio.get_running_loop().create_task(self._draw(part))
        self._tasks[part] = task
        task.add_done_callback(lambda _: self._tasks.pop(part))
        task.add_done_callback(self._propagate_error)

    def _propagate_error(self, task: asyncio.Task[None]) -> None:
        """Have the loop raise what a task of ours raised."""
        if not task.cancelled() and task.exception() is not None:
            self._bug = task.exception()
            self._wake.set()

    async def _draw(self, part: _Assignment) -> None:
        """Have a part drawn; what its replica does not finish is given to another."""
        drawing: UpdateStream | None = None
        failure = "it ended early"
        while True:
            try:
                if drawing is None:
                    drawing = self._replicas.draw(WorkItem.of(part.generation, part.images))
                news = await anext(drawing)
            except StopAsyncIteration:
                break
            except (Exception, asyncio.CancelledError) as error:  # whatever a dying process brings
                if is_cancelled(error):
                    if drawing is not None:
                        drawing.cancel()
                    raise
                failure = next(iter(str(error).splitlines()), type(error).__name__)
                break
            try:
                self._apply_updates(part, news)
            except Exception:  # not the replica's: another would not mend it
                log.exception(
                    "%s: what is new of %s cannot be told; is_cancelled it",
                    self.name,
                    part.generation.id,
                )
                drawing.cancel()
                if not part.generation.finished:
                    self._fail(part.generation)
                return
        left = [image for image in part.images if image.status is not Status.FINISHED]
        if not left:
            return
        what = f"{self.name}: {len(left)} images of {part.generation.id}"
        if part.tries == MAX_TRIES:
            log.error("%s are given up after %d tries: %s", what, MAX_TRIES, failure)
            self._fail(part.generation)
            return
        log.warning("%s are drawn again: %s", what, failure)
        self._progress.redraw(len(left))
        if part.tries > 1:
            await self._heartbeats.wait_for_next()
        for run in _runs(left):
            self._assign(_Assignment(part.generation, run, part.tries + 1))

    def _apply_updates(self, part: _Assignment, news: ItemUpdates) -> None:
        for look in news:
            image = part.images[look.image]
            if image.status is Status.FINISHED:
                continue
            if (stop := look.start + len(look.pixels)) > image.position:
                spec, part.tries = part.generation.spec, 1
                # Leading known pixels are prefilled, not drawn.
                self._drawn += max(0, stop - max(image.position, spec.prefix)) * spec.slots
            self._look(part.generation, image, look)
        self._progress.advance(part.generation)

    def _look(self, generation: Generation, image: Image, look: ImageUpdate) -> None:
        image.write(look.start, look.pixels, look.changed)
        if look.end is not None and look.end.reason is FinishReason.LENGTH:
            image.particles = look.end.weighed
            self._finish_image(generation, image, look.end.reason, look.end.bits)

    def _finish_image(
        self, generation: Generation, image: Image, reason: FinishReason, bits: float | None
    ) -> None:
        if image in self._held:  # first, whatever those who are told do
            self._in_use[self._held.pop(image)] -= generation.spec.slots
            self._at_replicas[generation] -= 1
            if not self._at_replicas[generation]:
                del self._at_replicas[generation]
            self._wake.set()
        self._progress.finish_image(generation, image, reason, bits)


def _runs(images: list[Image]) -> list[list[Image]]:
    """Split images where their indices do not follow each other."""
    runs: list[list[Image]] = []
    for image in images:
        if runs and runs[-1][-1].index == image.index - 1:
            runs[-1].append(image)
        else:
            runs.append([image])
    return runs
