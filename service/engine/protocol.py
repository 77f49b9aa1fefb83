"""Interface between the routes and a local or distributed engine."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

import torch

from scanline.model.config import ModelConfig
from scanline.service.engine.generation import Generation
from scanline.service.engine.image import FinishReason
from scanline.service.engine.queue import Queue

log = logging.getLogger("scanline.engine")

DRAWING_FAILED = "drawing failed inside the server; send the request again"
JOIN_GRACE_SECONDS = 5.0  # beyond the drain time, to wait for an engine thread

EndGeneration = Callable[[Generation, FinishReason], None]


class EngineProtocol(Protocol):
    """Engine that draws the generations of its ``queue``, in this process or on replicas."""

    @property
    def name(self) -> str:
        """Name of the model."""

    @property
    def config(self) -> ModelConfig:
        """Config of the model."""

    @property
    def queue(self) -> Queue:
        """Queue of the engine's generations."""

    @property
    def backend(self) -> str:
        """Name of the decoder backend."""

    @property
    def variant(self) -> str:
        """Everything but the model that a seed's bytes depend on."""

    @property
    def likelihood_device(self) -> torch.device:
        """Device of this process on which likelihoods of whole images are computed."""

    @property
    def arithmetic(self) -> int | None:
        """Version of the arithmetic that is the same on every CPU; None if there is none."""

    @property
    def slow(self) -> bool:
        """True if drawing is many times slower than on a usual machine."""

    @property
    def slots(self) -> int:
        """Number of slots that any request may use."""

    @property
    def max_slots_per_image(self) -> int:
        """Number of slots that one image may use."""

    @property
    def memory(self) -> int:
        """Bytes of this machine's memory that the slots take once they are used."""

    @property
    def total_slots(self) -> int:
        """Number of all slots, including the spare ones for small requests."""

    @property
    def slots_in_use(self) -> int:
        """Number of slots that running images hold."""

    @property
    def running(self) -> int:
        """Number of running images."""

    @property
    def alive(self) -> bool:
        """True if the engine draws and accepts work."""

    @property
    def broken(self) -> bool:
        """True if the engine cannot draw again in this process."""

    @property
    def stuck(self) -> bool:
        """True if a step hangs, so that only a new process will help."""

    def close(self, drain: float) -> None:
        """Accept no more work, and end everything that is not finished within ``drain`` seconds."""


def close_and_wait(queue: Queue, drain: float, thread: threading.Thread, work: str) -> None:
    """Close an engine's queue, and wait for the engine thread to end.

    Args:
        queue: The engine's queue.
        drain: Seconds that running images have to finish.
        thread: The engine thread; must not be the caller's own.
        work: What the thread does, for the log message if it does not end.
    """
    queue.close(drain)
    if thread.ident is not None:
        thread.join(drain + JOIN_GRACE_SECONDS)
        if thread.is_alive():
            log.critical("%s does not end: %s hangs", thread.name, work)


def cancel_abandoned(queue: Queue, end: EndGeneration) -> None:
    """End all generations that were cancelled or lost their readers."""
    for generation in queue.pop_abandoned():
        end(generation, FinishReason.ERROR if generation.error else FinishReason.CANCELLED)


def fail_all(queue: Queue, end: EndGeneration) -> None:
    """Close the queue after a bug in the engine, and end all its generations with an error."""
    queue.close(0.0)
    queue.check_drain()
    for generation in queue.pop_abandoned():
        try:
            end(generation, FinishReason.ERROR)
        except Exception:
            log.exception("cannot end generation %s", generation.id)
            queue.finish(generation)
