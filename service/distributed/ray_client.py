"""Client of a model's replicas in Ray Serve."""

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
    """Client of one deployment's replicas (a ``ReplicaClient``)."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle
        self._draw_handle = handle.options(method_name="draw", stream=True)

    def draw(self, item: WorkItem) -> UpdateStream:
        """Send a work item to the replica with the fewest images."""
        stream: UpdateStream = self._draw_handle.remote(item)
        return stream

    async def heartbeat(
        self, frontend: str, share: float, reproducibility: str | None
    ) -> tuple[list[ReplicaReport], list[Exception]]:
        """Ask all replicas for a report (see ``ReplicaClient.heartbeat``)."""
        call = ("heartbeat", frontend, share, reproducibility)
        replies = await asyncio.to_thread(_broadcast, self._handle, HEARTBEAT_TIMEOUT, *call)
        reports = [one for one in replies if isinstance(one, ReplicaReport)]
        return reports, [one for one in replies if isinstance(one, Exception)]


def connect_engine(
    checkpoint: Checkpoint, handle: DeploymentHandle, settings: Settings, metrics: ModelMetrics
) -> DistributedEngine:
    """Start an engine for a deployment, and wait up to 30 s for the first replica's report."""
    replicas, config = RayReplicaClient(handle), checkpoint.model.config
    engine = DistributedEngine(
        checkpoint.name, config, replicas, settings.slots, settings.queue_limits, metrics
    )
    metrics.add_replicas(engine.metrics)
    engine.start()
    engine.ready.wait(FIRST_REPORT_SECONDS)
    return engine


def running_programs(handle: DeploymentHandle, seconds: float) -> set[str]:
    """Return the programs that the replicas run (see ``program_id``).

    Args:
        handle: The deployment.
        seconds: How long to retry if no replica replies.

    Returns:
        The programs; empty if there is no replica, or one of an incompatible version.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            replies = _broadcast(handle, HEARTBEAT_TIMEOUT, "program")
        except DeploymentUnavailableError:
            return set()
        if any(isinstance(reply, RayTaskError) for reply in replies):  # an incompatible version
            return set()
        # Replicas on a lost machine are silent until Ray removes them.
        programs = {reply for reply in replies if isinstance(reply, str)}
        if programs or time.monotonic() > deadline:
            return programs
        time.sleep(0.5)


def _broadcast(
    handle: DeploymentHandle, seconds: float, method: str, *arguments: object
) -> list[Any]:
    """Call a method of all replicas.

    Returns:
        Per replica, its result or an exception.

    Raises:
        DeploymentUnavailableError: There is no replica.
    """
    response = handle.broadcast(method, *arguments)
    # Only this blocking call returns the other replicas' results if one is silent.
    try:
        replies: list[Any] = response.results(timeout_s=seconds, return_exceptions=True)
    except TimeoutError as error:
        return [error]
    return replies
