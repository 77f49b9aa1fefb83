"""The Ray cluster that a frontend joins or begins, and the models it opens there."""

from __future__ import annotations

import logging
import os
import re
import socket
import time
from collections.abc import Mapping

import ray
from ray import serve
from ray.serve.handle import DeploymentHandle

from scanline.model.checkpoint import Checkpoint
from scanline.model.decoders.base import BackendError
from scanline.service.distributed.deployment import make_deployment, program_id
from scanline.service.distributed.engine import DistributedEngine
from scanline.service.distributed.heartbeats import SILENT_SECONDS
from scanline.service.distributed.ray_client import connect_engine, running_programs
from scanline.service.metrics import ModelMetrics
from scanline.service.settings import Settings

log = logging.getLogger("scanline.cluster")

ADDRESS = "RAY_ADDRESS"
JOIN_SECONDS = 60.0  # that a cluster may begin to listen after us
OTHERS_SECONDS = 30.0  # that replicas have to start after the first
LIVE_STATUSES = (
    "RUNNING",
    "DEPLOYMENT",
    "UNHEALTHY",
)  # where replicas draw, if not all there are to be
OBJECT_STORE_BYTES = (
    128 * 2**20
)  # bytes of shared memory: parts and news are small and go by message
_ERROR = re.compile(r"(?:\w+\.)*(\w+): ")  # as a traceback ends, the module's name before it


class RayCluster:
    """A Ray cluster, that of RAY_ADDRESS or one begun here, and the models deployed in it."""

    def __init__(self) -> None:
        """Join it; raises ``ConnectionError``, or what Ray does, where it cannot.

        Ray takes the process's signals, and aborts 3 s after a SIGTERM: whoever has their own
        handlers sets them after this.
        """
        self._own = ADDRESS not in os.environ
        if self._own:
            # By default workers are nicer than all else on the machine.
            os.environ.setdefault("RAY_worker_niceness", "0")
            ray.init(
                "local", _node_ip_address="127.0.0.1", include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES, log_to_driver=False,
            )  # fmt: skip
        else:
            wait_until_listening(os.environ[ADDRESS], JOIN_SECONDS)
            ray.init(log_to_driver=False)
        serve.start(proxy_location="Disabled")  # this process listens itself
        logging.getLogger("ray.serve").setLevel(logging.WARNING)  # it tells of every cancelled part

    def open(
        self, checkpoint: Checkpoint, settings: Settings, metrics: ModelMetrics
    ) -> DistributedEngine:
        """Run a model's deployment, unless it is there and runs the same, and reach its replicas.

        Raises ``BackendError`` where none can start, or where a cluster begun here, one machine
        that never grows, lacks what they want.
        """
        name, program = checkpoint.name, program_id(checkpoint, settings)
        here = settings.max_replicas_per_node
        if self._own and here is not None and here < settings.max_replicas:
            raise BackendError(
                f"{settings.max_replicas} replicas of {name} would never be: this is one machine, "
                f"which may have {here} (SCANLINE_MAX_REPLICAS_PER_NODE); set RAY_ADDRESS to a "
                "cluster of several, or leave it out"
            )
        application = f"scanline-{name}"
        there = None if self._own else serve.status().applications.get(application)
        if there is not None and there.status in LIVE_STATUSES:
            running = serve.get_app_handle(application)
            if running_programs(running, SILENT_SECONDS) == {program}:
                log.info("%s: its replicas are there, and go on", name)
                return connect_engine(checkpoint, running, settings, metrics)
        if there is None and (lack := missing_resources(settings, ray.available_resources())):
            what = f"the {settings.min_replicas} replicas of {name} want {lack}"
            if self._own:
                raise BackendError(
                    f"{what}: set SCANLINE_REPLICA_CPUS, SCANLINE_REPLICA_GPUS or "
                    "SCANLINE_MIN_REPLICAS lower, or serve fewer models"
                )
            log.warning("%s: waiting until they are free, or the cluster grows", what)
        target = serve.RunTarget(
            make_deployment(checkpoint, settings), application, route_prefix=None
        )
        (handle,) = serve.run_many([target], wait_for_applications_running=False)
        _wait_for_replicas(handle, application, program)
        return connect_engine(checkpoint, handle, settings, metrics)

    def leave(self) -> None:
        """End the cluster if it was begun here; another's goes on with its models."""
        if self._own:
            serve.shutdown()
        ray.shutdown()


def wait_until_listening(address: str, seconds: float) -> None:
    """Wait until something listens at an address: Ray's own tries take a quarter of an hour.

    One that names no host and port, as ``auto``, is Ray's to find. Raises ``ConnectionError``.
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        return
    deadline, told = time.monotonic() + seconds, False
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise ConnectionError(f"nothing answers at {address} ({error})") from error
            if not told:
                log.info("waiting for the Ray cluster at %s (%s)", address, error)
            told = True
            time.sleep(0.5)


def missing_resources(settings: Settings, free: Mapping[str, float]) -> str:
    """Say what the least replicas of a model want and is not free, "" where all is."""
    each = {"CPU": settings.replica_cpus, "GPU": settings.replica_gpus}
    wanted = {kind: settings.min_replicas * amount for kind, amount in each.items()}
    return " and ".join(
        f"{amount:g} {kind}s where {free.get(kind, 0):g} are free"
        for kind, amount in wanted.items()
        if amount > free.get(kind, 0) + 1e-6
    )


def _wait_for_replicas(handle: DeploymentHandle, application: str, program: str) -> None:
    """Wait until all draw that there are to be, or those there are have waited long for others.

    Raises ``BackendError`` where one cannot start.
    """
    deadline = float("inf")
    while time.monotonic() < deadline:
        status = serve.status().applications[application]
        if status.status == "DEPLOY_FAILED":
            raise BackendError(
                "; ".join(
                    f"the replicas of {name} cannot start: {_cause(one.message)}"
                    for name, one in status.deployments.items()
                )
                or status.message
            )
        if status.status == "RUNNING":
            return
        if running_programs(handle, 0) == {program}:  # none is left that runs anything else
            deadline = min(deadline, time.monotonic() + OTHERS_SECONDS)
        time.sleep(0.2)
    log.warning("%s: going on with the replicas there are", application)


def _cause(message: str) -> str:
    """Give the end of a traceback in words of Ray's: the error, and what it says."""
    lines = message.strip().splitlines() or ["Ray does not say why"]
    last = max((k for k, line in enumerate(lines) if _ERROR.match(line)), default=len(lines) - 1)
    return _ERROR.sub(r"\1: ", " ".join(line.strip() for line in lines[last:]), count=1)
