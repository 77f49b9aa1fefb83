"""How a frontend reaches the replicas of a model: one with a part, or all with a question."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from ray.exceptions import RayTaskError
from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from scanline.model.checkpoint import Checkpoint
from scanline.service.distributed.engine import DistributedEngine
from scanline.service.distributed.heartbeats import HEARTBEAT_TIMEOUT
from scanline.service.distributed.messages import ReplicaReport, UpdateStream, WorkItem
from scanline.service.metrics import ModelMetrics
from scanline.service.settings import Settings

FIRST_REPORT_SECONDS = 30.0


class RayReplicaClient:
    """The replicas of one deployment (``Replicas``)."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle
        self._drawing = handle.options(method_name="draw", stream=True)

    def draw(self, part: WorkItem) -> UpdateStream:
        """Have the one with the fewest images draw a part."""
        drawing: UpdateStream = self._drawing.remote(part)
        return drawing

    async def heartbeat(
        self, frontend: str, share: float, seconds: float
    ) -> tuple[list[ReplicaReport], list[Exception]]:
        """Have all of them report; gives what came in so long, and why others did not report."""
        answers = await asyncio.to_thread(_ask, self._handle, seconds, "heartbeat", frontend, share)
        reports = [one for one in answers if isinstance(one, ReplicaReport)]
        return reports, [one for one in answers if isinstance(one, Exception)]


def connect_engine(
    checkpoint: Checkpoint, handle: DeploymentHandle, settings: Settings, metrics: ModelMetrics
) -> DistributedEngine:
    """Reach the replicas of a model's deployment, and wait a while for the first of them."""
    replicas, config = RayReplicaClient(handle), checkpoint.model.config
    engine = DistributedEngine(
        checkpoint.name, config, replicas, settings.slots, settings.limits, metrics
    )
    metrics.add_replicas(engine.metrics)
    engine.start()
    engine.ready.wait(FIRST_REPORT_SECONDS)
    return engine


def running_programs(handle: DeploymentHandle, seconds: float) -> set[str]:
    """Ask all replicas what they run, for so long; nothing where there are none that say it."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            answers = _ask(handle, HEARTBEAT_TIMEOUT, "program")
        except DeploymentUnavailableError:
            return set()
        if any(isinstance(answer, RayTaskError) for answer in answers):  # of another version
            return set()
        # Of a lost machine they say nothing, until Ray ends them.
        programs = {answer for answer in answers if isinstance(answer, str)}
        if programs or time.monotonic() > deadline:
            return programs
        time.sleep(0.5)


def _ask(handle: DeploymentHandle, seconds: float, method: str, *arguments: object) -> list[Any]:
    """Call a method of all replicas; gives for each what it returned, or why it did not.

    Raises ``DeploymentUnavailableError`` where there are none.
    """
    asked = handle.broadcast(method, *arguments)
    try:  # alone where it blocks does Ray give the others' answers where one is silent
        answers: list[Any] = asked.results(timeout_s=seconds, return_exceptions=True)
    except TimeoutError as error:
        return [error]
    return answers
