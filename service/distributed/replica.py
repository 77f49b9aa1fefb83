"""Replica: one engine in a process of its own, which draws work items and sends updates."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

from scanline.model.checkpoint import CheckpointError, load_checkpoints
from scanline.service import __version__
from scanline.service.distributed.messages import (
    ImageProgress,
    ItemUpdates,
    ReplicaReport,
    WorkItem,
    image_update,
    reproducibility,
)
from scanline.service.engine.image import Image
from scanline.service.logs import set_up_logs
from scanline.service.metrics import Metrics
from scanline.service.runtime_tuning import tune_interpreter
from scanline.service.settings import Settings
from scanline.service.state.registry import open_engine

log = logging.getLogger("scanline.cluster")

# Sending an update costs as much as drawing thousands of pixels.
UPDATES_PER_SECOND = 120  # of all work items together
ITEM_UPDATES_PER_SECOND = 60  # of one work item
SHARE_SECONDS = 5.0  # age at which a silent frontend's waiting images no longer count


class Replica:
    """Draws with one model. Ray Serve starts as many replicas as are needed.

    Args:
        name: Name of the model.
        digest: Digest of the frontend's weights.
        settings: Settings of the deployment, by field name.
        program: Program that the replica is to run (see ``program_id``). Starts with the version.

    Raises:
        RuntimeError: This machine has another version of Scanline.
        CheckpointError: This machine has other weights. Both could give other bytes for the same
            seed.
    """

    def __init__(self, name: str, digest: str, settings: dict[str, Any], program: str) -> None:
        version = program.split()[0]
        if version != __version__:
            raise RuntimeError(
                f"{platform.node()} has Scanline {__version__}, but the frontend has {version}; "
                "install the same version on every machine"
            )
        self._program = program
        own = Settings(**settings)
        set_up_logs(own.log_format, own.log_level)
        # The frontend bounds waiting images and keeps finished ones.
        own.max_waiting, own.keep_finished = sys.maxsize, 0
        if own.threads is None and own.backend in ("auto", "native"):
            own.threads = max(1, int(own.replica_cpus))
        (checkpoint,) = load_checkpoints(own.weights, [name])
        if checkpoint.digest != digest:
            raise CheckpointError(
                f"the weights of {name} in {own.weights} on {platform.node()} differ from the "
                "frontend's; copy the same files to every machine"
            )
        self._name = f"{name}-{secrets.token_hex(4)}"
        self._metrics = Metrics(lambda: [self._engine])
        self._engine = open_engine(checkpoint, own, self._metrics.observer(name))
        self._shares: dict[str, tuple[float, float]] = {}  # by frontend: time and waiting slots
        self._items = 0  # work items in progress
        tune_interpreter()

    async def draw(self, item: WorkItem) -> AsyncIterator[ItemUpdates]:
        """Draw a work item, and yield updates until it is complete.

        If the caller stops reading, the work item is cancelled.

        Raises:
            ValueError: An image needs more slots than the replica has, so it would block the queue.
        """
        self._exit_if_unusable(item.reproducibility)
        if item.spec.slots_per_image > self._engine.max_slots_per_image:
            raise ValueError(
                f"an image needs {item.spec.slots_per_image} slots; {self._name} has fewer"
            )
        queue = self._engine.queue
        generation = queue.submit(item.spec, caller=item.caller, request_slots=item.request_slots)
        progress = list(item.progress)
        unfinished = list(generation.images)  # images whose result is not sent yet
        done = _event_of(generation.add_done_callback)
        self._items += 1
        try:
            with queue.reading(generation, grace=0):
                while unfinished:
                    seen = generation.version
                    updates = _new_updates(unfinished, progress)
                    if updates:
                        yield updates
                    finished = {update.image for update in updates if update.result}
                    unfinished = [one for one in unfinished if one.index not in finished]
                    if updates and unfinished:  # leave time for the updates of other work items
                        pause = max(1 / ITEM_UPDATES_PER_SECOND, self._items / UPDATES_PER_SECOND)
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(done.wait(), pause)
                    if unfinished:
                        await _event_of(partial(generation.add_change_callback, seen=seen)).wait()
        finally:
            self._items -= 1

    def program(self) -> str:
        """Return the program that this replica runs."""
        return self._program

    def heartbeat(
        self, frontend: str, share: float, reproducibility: str | None = None
    ) -> ReplicaReport:
        """Return a report, and record how many waiting slots this replica's share is.

        If other replicas of the frontend may draw other bytes, as ``reproducibility`` tells, the
        process ends.
        """
        self._exit_if_unusable(reproducibility)
        self._shares[frontend] = (time.monotonic(), share)
        engine = self._engine
        return ReplicaReport(
            self._name, engine.slots, engine.total_slots - engine.slots, engine.backend,
            engine.variant, engine.arithmetic, self._metrics.decoder_metrics(), engine.slow,
        )  # fmt: skip

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the slots in use and this replica's share of waiting slots (Ray Serve's hook)."""
        oldest = time.monotonic() - SHARE_SECONDS
        self._shares = {name: share for name, share in self._shares.items() if share[0] >= oldest}
        shares = sum(share for _, share in self._shares.values())
        return {"slots": self._engine.slots_in_use + self._engine.queue.waiting_slots() + shares}

    def check_health(self) -> None:
        """Raise ``RuntimeError`` if the engine does not draw any more (Ray Serve's hook)."""
        if not self._engine.alive:
            raise RuntimeError(f"the engine of {self._name} has ended or hangs")

    def _exit_if_unusable(self, expected: str | None) -> None:
        """Exit at once: an idle unusable replica would be chosen for every work item."""
        engine = self._engine
        own = reproducibility(engine.arithmetic, engine.variant)
        if expected not in (None, own):
            log.critical(
                "%s draws with %s on %s, but the other replicas with other bytes (%s); exiting",
                self._name, engine.variant, platform.node(), expected,
            )  # fmt: skip
            os._exit(1)
        if engine.broken:
            log.critical("%s cannot draw any more; exiting", self._name)
            os._exit(1)


def _new_updates(images: list[Image], progress: list[ImageProgress]) -> ItemUpdates:
    """Return the updates since ``progress``, and advance ``progress`` in place."""
    updates: ItemUpdates = []
    for image in images:
        update, progress[image.index] = image_update(image, progress[image.index])
        if update is not None:
            updates.append(update)
    return updates


def _event_of(register: Callable[[Callable[[], None]], None]) -> asyncio.Event:
    """Register a callback that sets the returned event, from any thread."""
    event, loop = asyncio.Event(), asyncio.get_running_loop()

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # the loop may be closed
            loop.call_soon_threadsafe(event.set)

    register(wake)
    return event
