"""Ray cluster that the frontend joins or starts, and the models deployed in it."""

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
JOIN_SECONDS = 60.0  # to wait for a cluster to listen
OTHERS_SECONDS = 30.0  # to wait for further replicas after the first
LIVE_STATUSES = ("RUNNING", "DEPLOYING", "UNHEALTHY")  # applications that may have replicas
OBJECT_STORE_BYTES = 128 * 2**20  # Ray's shared memory; our messages are too small to use it
_ERROR = re.compile(r"(?:\w+\.)*(\w+): ")  # last line of a traceback, with the module's name


class RayCluster:
    """A Ray cluster, at RAY_ADDRESS or started here, and the models deployed in it."""

    def __init__(self) -> None:
        """Join or start the cluster.

        Ray installs signal handlers, and aborts the process 3 s after a SIGTERM. Install your own
        handlers after this.

        Raises:
            ConnectionError: The cluster cannot be reached. Ray may raise other errors.
        """
        self._own = ADDRESS not in os.environ
        if self._own:
            # By default Ray gives its workers a lower priority than all other processes.
            os.environ.setdefault("RAY_worker_niceness", "0")
            ray.init(
                "local", _node_ip_address="127.0.0.1", include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES, log_to_driver=False,
            )  # fmt: skip
        else:
            wait_until_listening(os.environ[ADDRESS], JOIN_SECONDS)
            ray.init(log_to_driver=False)
        serve.start(proxy_location="Disabled")  # this process listens itself
        logging.getLogger("ray.serve").setLevel(logging.WARNING)  # INFO logs each cancelled item

    def open(
        self, checkpoint: Checkpoint, settings: Settings, metrics: ModelMetrics
    ) -> DistributedEngine:
        """Deploy a model, and connect to its replicas.

        Replicas that already run the same program are reused.

        Raises:
            BackendError: No replica can start, or a cluster of one machine lacks the resources.
        """
        name, program = checkpoint.name, program_id(checkpoint, settings)
        per_node = settings.max_replicas_per_node
        if self._own and per_node is not None and per_node < settings.max_replicas:
            raise BackendError(
                f"{name} cannot have {settings.max_replicas} replicas on this single machine, "
                f"because SCANLINE_MAX_REPLICAS_PER_NODE is {per_node}; set RAY_ADDRESS to a "
                "cluster of several machines, or unset SCANLINE_MAX_REPLICAS_PER_NODE"
            )
        application = f"scanline-{name}"
        existing = None if self._own else serve.status().applications.get(application)
        if existing is not None and existing.status in LIVE_STATUSES:
            handle = serve.get_app_handle(application)
            if running_programs(handle, SILENT_SECONDS) == {program}:
                log.info("%s: using the replicas that already run", name)
                return connect_engine(checkpoint, handle, settings, metrics)
        if existing is None and (missing := missing_resources(settings, ray.available_resources())):
            problem = f"the {settings.min_replicas} replicas of {name} need {missing}"
            if self._own:
                raise BackendError(
                    f"{problem}; lower SCANLINE_REPLICA_CPUS, SCANLINE_REPLICA_GPUS or "
                    "SCANLINE_MIN_REPLICAS, or serve fewer models"
                )
            log.warning("%s; waiting until they are free or the cluster grows", problem)
        target = serve.RunTarget(
            make_deployment(checkpoint, settings), application, route_prefix=None
        )
        (handle,) = serve.run_many([target], wait_for_applications_running=False)
        _wait_for_replicas(handle, application, program)
        return connect_engine(checkpoint, handle, settings, metrics)

    def shutdown(self) -> None:
        """End the cluster if it was started here; otherwise its models keep running."""
        if self._own:
            serve.shutdown()
        ray.shutdown()


def wait_until_listening(address: str, seconds: float) -> None:
    """Wait until something listens at ``address``; Ray itself would retry for 15 minutes.

    An address without host and port, such as ``auto``, is left to Ray.

    Raises:
        ConnectionError: Nothing listens within ``seconds``.
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        return
    deadline, logged = time.monotonic() + seconds, False
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise ConnectionError(f"nothing listens at {address} ({error})") from error
            if not logged:
                log.info("waiting for the Ray cluster at %s (%s)", address, error)
            logged = True
            time.sleep(0.5)


def missing_resources(settings: Settings, free: Mapping[str, float]) -> str:
    """Describe what the minimum number of replicas needs beyond ``free``; "" if nothing."""
    per_replica = {"CPU": settings.replica_cpus, "GPU": settings.replica_gpus}
    needed = {kind: settings.min_replicas * amount for kind, amount in per_replica.items()}
    return " and ".join(
        f"{amount:g} {kind}s ({free.get(kind, 0):g} free)"
        for kind, amount in needed.items()
        if amount > free.get(kind, 0) + 1e-6
    )


def _wait_for_replicas(handle: DeploymentHandle, application: str, program: str) -> None:
    """Wait until all replicas run, or ``OTHERS_SECONDS`` after the first one runs.

    Raises:
        BackendError: A replica cannot start.
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
        if running_programs(handle, 0) == {program}:  # no replica of an older program is left
            deadline = min(deadline, time.monotonic() + OTHERS_SECONDS)
        time.sleep(0.2)
    log.warning("%s: continuing with the replicas that run", application)


def _cause(message: str) -> str:
    """Return the error at the end of a traceback in one of Ray's messages."""
    lines = message.strip().splitlines() or ["Ray gives no reason"]
    last = max((k for k, line in enumerate(lines) if _ERROR.match(line)), default=len(lines) - 1)
    return _ERROR.sub(r"\1: ", " ".join(line.strip() for line in lines[last:]), count=1)
