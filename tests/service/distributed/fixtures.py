"""Replicas in this process, without Ray, which can die in the middle of a work item."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scanline.model.checkpoint import Checkpoint, load_checkpoint
from scanline.model.sampling import SamplingParams
from scanline.service import __version__
from scanline.service.distributed.engine import DistributedEngine
from scanline.service.distributed.messages import ItemUpdates, ReplicaReport, WorkItem
from scanline.service.distributed.replica import Replica
from scanline.service.engine.engine import Engine
from scanline.service.engine.generation import Generation, GenerationSpec
from scanline.service.engine.image import FinishReason
from scanline.service.engine.progress import Observer
from scanline.service.engine.queue_limits import QueueLimits
from scanline.service.state.registry import open_engine
from tests.service.fixtures import GREY, save_tiny, settings, tiny_model, until

SLOTS = 8
PROGRAM = f"{__version__} of these tests"
HOLE = np.ones(GREY.pixels, np.bool_)
HOLE[7:19] = False
VALUES = np.random.default_rng(0).integers(0, 256, (GREY.pixels, 1), np.uint8)
SPECS = {
    "one": GenerationSpec(n=1, seed=3),
    "many": GenerationSpec(
        n=21, seed=2**64 - 4, sampling=SamplingParams(random_label=True, temperature=0.8, top_p=0.9)
    ),
    "guided": GenerationSpec(n=5, seed=1, sampling=SamplingParams(label=1, guidance=2.0)),
    "completion": GenerationSpec(n=3, seed=5, canvas=VALUES, known=np.arange(GREY.pixels) < 13),
    "particles": GenerationSpec(
        n=4, seed=5, canvas=VALUES, known=HOLE, sampling=SamplingParams(particles=3)
    ),
}


class LocalReplicas:
    """Replicas in this process.

    Attributes:
        lives: For each of the next work items, after how many updates its replica dies.
    """

    def __init__(self, weights: Path, count: int, fields: dict[str, Any]) -> None:
        fields = {"weights": weights, "backend": "reference", "slots": SLOTS} | fields
        self._fields = fields
        self._digest = load_checkpoint(weights / "tiny.safetensors").digest
        self.replicas = [self._begin() for _ in range(count)]
        self.silent: list[Replica] = []
        self.lives: list[int] = []
        self.items: list[tuple[Replica, WorkItem]] = []

    def draw(self, item: WorkItem) -> FakeStream:
        replica = min(self.replicas, key=lambda one: sum(one is other for other, _ in self.items))
        self.items.append((replica, item))
        return FakeStream(replica.draw(item), self.lives.pop(0) if self.lives else None)

    async def heartbeat(
        self, frontend: str, share: float, reproducibility: str | None
    ) -> tuple[list[ReplicaReport], list[Exception]]:
        if not self.replicas:
            raise LookupError("there is none")
        silent = [one for one in self.replicas if one in self.silent]
        reports = [
            one.heartbeat(frontend, share, reproducibility)
            for one in self.replicas
            if one not in silent
        ]
        return reports, [TimeoutError() for _ in silent]

    def join(self) -> None:
        self.replicas = [*self.replicas, self._begin()]

    def _begin(self) -> Replica:
        return Replica("tiny", self._digest, self._fields, PROGRAM)


class FakeStream:
    """Update stream of a work item, whose replica dies after ``life`` updates."""

    def __init__(self, updates: AsyncIterator[ItemUpdates], life: int | None) -> None:
        self._updates, self._life = updates, life

    def __aiter__(self) -> FakeStream:
        return self

    async def __anext__(self) -> ItemUpdates:
        if self._life == 0:
            self.cancel()
            raise ConnectionError("the replica died")
        updates = await anext(self._updates)
        if self._life is None:
            return updates
        self._life -= 1
        # A late reader would receive everything at once, and leave nothing to other replicas.
        return [update._replace(result=None) for update in updates]

    def cancel(self) -> None:
        self._closing = asyncio.ensure_future(self._updates.aclose())  # type: ignore[attr-defined]


def import_with_ray(module: str) -> Any:
    """Import a module that needs Ray; skip the test if Ray is not installed."""
    pytest.importorskip("ray.serve", reason="Ray is not installed")
    return importlib.import_module(module)


@contextlib.contextmanager
def distributed_engine(
    folder: Path,
    count: int = 2,
    observer: Observer | None = None,
    fields: dict[str, Any] | None = None,
    wait: bool = True,
    **limits: float,
) -> Iterator[tuple[DistributedEngine, LocalReplicas]]:
    """Run an engine on replicas with a tiny model, and check at the end that it leaks nothing."""
    save_tiny(folder)
    local = LocalReplicas(folder, count, fields or {})
    config = load_checkpoint(folder / "tiny.safetensors").model.config
    bounds = QueueLimits(**limits)  # type: ignore[arg-type]
    engine = DistributedEngine("tiny", config, local, SLOTS, bounds, observer)
    engine.start()
    try:
        assert not wait or engine.ready.wait(60)
        yield engine, local
    finally:
        engine.close(30.0)
    assert not engine.alive
    assert engine.slots_in_use == engine.running == engine.queue.waiting == 0
    assert engine._images_assigned == {}  # otherwise finished generations would leak
    until(
        lambda: all(replica_is_idle(replica) for replica in local.replicas),
        "idle replicas",
    )


def replica_is_idle(replica: Replica) -> bool:
    return replica.record_autoscaling_stats()["slots"] == replica._items == 0


def drawn(engine: DistributedEngine | Engine, spec: GenerationSpec) -> Generation:
    """Draw a generation to its end."""
    generation = engine.queue.submit(spec)
    with engine.queue.reading(generation):
        until(lambda: generation.finished, "the generation's end")
    return generation


def pixels_of(generation: Generation) -> list[NDArray[np.uint8]]:
    return [image.read(0, generation.config.pixels) for image in generation.images]


@functools.cache  # because many tests draw the same images
def drawn_locally(spec: GenerationSpec, backend: str = "reference") -> Generation:
    """Draw the same spec with a local engine."""
    own = settings(slots=SLOTS, backend=backend)
    engine = open_engine(Checkpoint("tiny", tiny_model()), own)
    try:
        return drawn(engine, spec)
    finally:
        engine.close(0.0)


def assert_equals_local_engine(generation: Generation, backend: str = "reference") -> None:
    """Compare all bytes and metadata with those of a local engine."""
    alone = drawn_locally(generation.spec, backend)
    np.testing.assert_array_equal(pixels_of(generation), pixels_of(alone))
    for image, other in zip(generation.images, alone.images, strict=True):
        assert image.finish_reason is FinishReason.LENGTH
        assert (image.seed, image.label, image.bits) == (other.seed, other.label, other.bits)
        assert (image.revisions, image.particles) == (other.revisions, other.particles)


def record_cancels(monkeypatch: pytest.MonkeyPatch) -> list[FakeStream]:
    """Return a list to which cancelled streams are appended."""
    cancelled: list[FakeStream] = []
    cancel = FakeStream.cancel

    def watched(call: FakeStream) -> None:
        cancelled.append(call)
        cancel(call)

    monkeypatch.setattr(FakeStream, "cancel", watched)
    return cancelled
