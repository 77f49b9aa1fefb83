"""Where a model's images are drawn, whoever draws them: all that the routes know of it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from scanline.model.config import ModelConfig
from scanline.service.engine.generation import FinishReason, Generation
from scanline.service.engine.queue import Queue

log = logging.getLogger("scanline.engine")

DRAWING_FAILED = "drawing failed inside the server; send the request again"
JOIN_GRACE_SECONDS = 5.0  # beyond its time, after which nobody waits for a thread to end


class EngineProtocol(Protocol):
    """Draws what is submitted to its ``queue``: in this process, or on the replicas of a cluster.

    ``slots`` are those that anyone may have, ``total_slots`` also those kept for small requests;
    ``slots_in_use`` and ``running`` count what is drawn now. ``backend`` and ``variant`` say with
    what: one variant gives one seed the same bytes.
    """

    @property
    def name(self) -> str: ...
    @property
    def config(self) -> ModelConfig: ...
    @property
    def queue(self) -> Queue: ...
    @property
    def backend(self) -> str: ...
    @property
    def variant(self) -> str: ...
    @property
    def slots(self) -> int: ...
    @property
    def max_slots_per_image(self) -> int:
        """Count the slots that one image may take at most."""
        ...

    @property
    def memory(self) -> int:
        """Bytes of this machine that its slots come to take once they are used."""
        ...

    @property
    def total_slots(self) -> int: ...
    @property
    def slots_in_use(self) -> int: ...
    @property
    def running(self) -> int: ...
    @property
    def alive(self) -> bool:
        """Whether it draws and takes work."""
        ...

    @property
    def broken(self) -> bool:
        """Whether it never will again, in this process."""
        ...

    @property
    def stuck(self) -> bool:
        """Whether it has been at one thing for so long that only a new process will help."""
        ...

    def close(self, drain: float) -> None:
        """Take no more work, and end what is not finished within ``drain`` seconds."""
        ...


def close_and_wait(queue: Queue, drain: float, thread: threading.Thread, work: str) -> None:
    """Close a workshop's queue, which says how, and wait for its thread; from another thread.

    One that does not end is told of in the log, by the ``work`` that hangs.
    """
    queue.close(drain)
    if thread.ident is not None:
        thread.join(drain + JOIN_GRACE_SECONDS)
        if thread.is_alive():
            log.critical("%s does not end: %s hangs", thread.name, work)


def cancel_abandoned(queue: Queue, end: Callable[[Generation, FinishReason], None]) -> None:
    """End what was cancelled, or left by its readers."""
    for generation in queue.pop_abandoned():
        end(generation, FinishReason.ERROR if generation.error else FinishReason.CANCELLED)


def fail_all(queue: Queue, end: Callable[[Generation, FinishReason], None]) -> None:
    """Close the queue of a workshop that met a bug, and end with an error all that is in it."""
    queue.close(0.0)
    queue.check_drain()
    for generation in queue.pop_abandoned():
        try:
            end(generation, FinishReason.ERROR)
        except Exception:
            log.exception("a generation cannot be ended as it should")
            queue.finish(generation)
