"""A replica: one engine in a process of its own, that draws parts and tells what is new of them."""

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
)
from scanline.service.engine.generation import Image
from scanline.service.metrics import Metrics
from scanline.service.runtime_tuning import tune_interpreter
from scanline.service.settings import Settings
from scanline.service.state import open_engine

log = logging.getLogger("scanline.cluster")

UPDATES_PER_SECOND = 120  # of all parts together: each costs as much as thousands of pixels
ITEM_UPDATES_PER_SECOND = 60  # of one part at most
SHARE_SECONDS = 5.0  # a frontend that has said nothing for so long has nothing waiting


class Replica:
    """Draws with one model; Ray Serve makes as many as are needed.

    ``digest`` is that of the frontend's weights, ``settings`` are those set by whoever deploys it,
    as for a server, and ``program`` is what it is to run, the package's version first. Raises
    ``CheckpointError`` where the weights here are others, and ``RuntimeError`` where the package
    is: they would draw other pictures for the same seed.
    """

    def __init__(self, name: str, digest: str, settings: dict[str, Any], program: str) -> None:
        version = program.split()[0]
        if version != __version__:
            raise RuntimeError(
                f"{platform.node()} has Scanline {__version__}, and the frontend {version}: give "
                "every machine the same"
            )
        self._program = program
        own = Settings(**settings)
        own.max_waiting, own.keep_finished = sys.maxsize, 0  # the frontend sees to both
        if own.threads is None and own.backend in ("auto", "native"):
            own.threads = max(1, int(own.replica_cpus))
        (checkpoint,) = load_checkpoints(own.weights, [name])
        if checkpoint.digest != digest:
            raise CheckpointError(
                f"the weights of {name} in {own.weights} on {platform.node()} are not those of the "
                "frontend: give every machine the same files"
            )
        self._name = f"{name}-{secrets.token_hex(4)}"
        self._metrics = Metrics(lambda: {name: self._engine})
        self._engine = open_engine(checkpoint, own, self._metrics.observer(name))
        self._shares: dict[str, tuple[float, float]] = {}
        self._parts = 0
        tune_interpreter()

    async def draw(self, part: WorkItem) -> AsyncIterator[ItemUpdates]:
        """Draw a part, and yield what is new of it until its end; whoever leaves ends it."""
        self._end_if_broken()
        if (
            part.spec.slots > self._engine.max_slots_per_image
        ):  # it would wait for ever, and all behind it
            raise ValueError(f"an image takes {part.spec.slots} slots, and {self._name} has fewer")
        queue = self._engine.queue
        generation = queue.submit(part.spec, caller=part.caller, request_slots=part.request_slots)
        known = list(part.known)
        left = list(generation.images)  # whose end is yet to be told
        ended = _called(generation.add_done_callback)
        self._parts += 1
        try:
            with queue.reading(generation, grace=0):
                while left:
                    seen = generation.version
                    looks = _looks(left, known)
                    if looks:
                        yield looks
                    over = {look.image for look in looks if look.end}
                    left = [image for image in left if image.index not in over]
                    if looks and left:  # leave time for the news of other parts
                        pause = max(1 / ITEM_UPDATES_PER_SECOND, self._parts / UPDATES_PER_SECOND)
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(ended.wait(), pause)
                    if left:
                        await _called(partial(generation.add_change_callback, seen=seen)).wait()
        finally:
            self._parts -= 1

    def program(self) -> str:
        """Say what it runs, to a frontend that may go on with it."""
        return self._program

    def heartbeat(self, frontend: str, share: float) -> ReplicaReport:
        """Say how it is, to a frontend where images of that ``share`` of slots wait for it."""
        self._end_if_broken()
        self._shares[frontend] = (time.monotonic(), share)
        engine = self._engine
        return ReplicaReport(
            self._name, engine.slots, engine.total_slots - engine.slots, engine.backend,
            engine.variant, self._metrics.decoder_metrics(),
        )  # fmt: skip

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Count its slots in use, and its share of those waited for (Ray Serve's hook)."""
        oldest = time.monotonic() - SHARE_SECONDS
        self._shares = {name: told for name, told in self._shares.items() if told[0] >= oldest}
        shares = sum(share for _, share in self._shares.values())
        return {"slots": self._engine.slots_in_use + self._engine.queue.waiting_slots() + shares}

    def check_health(self) -> None:
        """Raise ``RuntimeError`` where nothing is drawn any more (Ray Serve's hook)."""
        if not self._engine.alive:
            raise RuntimeError(f"the engine of {self._name} has ended, or hangs")

    def _end_if_broken(self) -> None:
        """End the process: with nothing to draw it would be chosen for every part meanwhile."""
        if self._engine.broken:
            log.critical("%s can draw no more: its process ends", self._name)
            os._exit(1)


def _looks(images: list[Image], known: list[ImageProgress]) -> ItemUpdates:
    looks: ItemUpdates = []
    for image in images:
        look, known[image.index] = image_update(image, known[image.index])
        if look is not None:
            looks.append(look)
    return looks


def _called(register: Callable[[Callable[[], None]], None]) -> asyncio.Event:
    """Give an event that is set when another thread calls what is registered."""
    called, loop = asyncio.Event(), asyncio.get_running_loop()

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # the loop may be closed by then
            loop.call_soon_threadsafe(called.set)

    register(wake)
    return called
