"""The models as deployments of Ray Serve, and how an entrance reaches their replicas."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import logging
import os
import re
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayTaskError
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig
from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from scanline import kernels, model, service
from scanline.model.checkpoint import Checkpoint
from scanline.model.decoders.contract import BackendError
from scanline.service import __version__
from scanline.service.cluster.fleet import Fleet
from scanline.service.cluster.meetings import ANSWER_SECONDS
from scanline.service.cluster.parts import Drawing, Part, Report
from scanline.service.cluster.replica import Replica
from scanline.service.metrics import ModelMetrics
from scanline.service.settings import Settings

log = logging.getLogger("scanline.cluster")

ADDRESS = "RAY_ADDRESS"
JOIN_SECONDS = 60.0  # that a cluster may begin to listen after us
FIRST_REPORT_SECONDS = 30.0
OTHERS_SECONDS = 30.0  # that replicas have to start after the first
LOST_SECONDS = 45.0  # after which Ray has ended one that does not answer, or is on a lost machine
OF_REPLICAS = {  # settings; the others are the entrance's
    "backend", "slots", "threads", "min_replicas", "max_replicas", "max_replicas_per_node",
    "replica_images", "replica_cpus", "replica_gpus", "scale_up_seconds", "scale_down_seconds",
    "drain_seconds", "log_format", "log_level",
}  # fmt: skip
CODE = (".py", ".h", ".cpp", ".cu")  # files of this package that say what is drawn
_ERROR = re.compile(r"(?:\w+\.)*(\w+): ")  # as a traceback ends, the module's name before it
END_SECONDS = 10.0  # that a replica told to end has to finish its parts
GOING_ON = ("RUNNING", "DEPLOYING", "UNHEALTHY")  # where replicas draw, if not all there are to be
PARTS_AT_ONCE = 100_000  # of a replica: how many it has is the entrance's to say
OBJECTS = 128 * 2**20  # bytes of shared memory: parts and news are small and go by message


def own_settings(settings: Settings, keep_key: bool = False) -> dict[str, Any]:
    """Give those that were set: the others are each machine's own, as where the weights are.

    But how many slots there are is the same everywhere: an image must fit wherever it goes.
    """
    own = settings.model_dump(exclude_unset=True, exclude={"api_key"}) | {"slots": settings.slots}
    if "weights" in own:  # replicas begin in another folder
        own["weights"] = settings.weights.absolute()
    if keep_key and settings.api_key is not None:
        own["api_key"] = settings.api_key.get_secret_value()
    return own


@functools.cache
def _sources() -> str:
    """Give a hash of this package's code."""
    digest = hashlib.sha256()
    for part in (kernels, model, service):
        folder = Path(next(iter(part.__path__)))
        for path in sorted(path for path in folder.rglob("*") if path.suffix in CODE):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def program_of(checkpoint: Checkpoint, settings: Settings) -> str:
    """Name what a model's replicas run: this package's version, and a hash of all that counts."""
    theirs = json.dumps(settings.model_dump(include=OF_REPLICAS, mode="json"), sort_keys=True)
    digest = hashlib.sha256("\0".join([_sources(), checkpoint.digest, theirs]).encode())
    return f"{__version__} {digest.hexdigest()}"


def deployment(checkpoint: Checkpoint, settings: Settings) -> Any:
    """Give a model's deployment, scaled by its images' slots, not yet run."""
    scaling = AutoscalingConfig(
        min_replicas=settings.min_replicas,
        max_replicas=settings.max_replicas,
        target_ongoing_requests=settings.replica_images or settings.slots,
        upscale_delay_s=settings.scale_up_seconds,
        downscale_delay_s=settings.scale_down_seconds,
        metrics_interval_s=1.0,
        look_back_period_s=2.0,
        policy=AutoscalingPolicy(policy_function="scanline.service.cluster.scaling:by_slots"),
    )
    routing = RequestRouterConfig(
        request_router_class="scanline.service.cluster.routing:FewestImages"
    )
    return serve.deployment(
        Replica,
        name=checkpoint.name,
        max_ongoing_requests=PARTS_AT_ONCE,
        autoscaling_config=scaling,
        request_router_config=routing,
        ray_actor_options={"num_cpus": settings.replica_cpus, "num_gpus": settings.replica_gpus},
        max_replicas_per_node=settings.max_replicas_per_node,
        # What it has is drawn again by others; one that hangs holds it for as long as that.
        graceful_shutdown_timeout_s=min(settings.drain_seconds, END_SECONDS),
        health_check_period_s=5.0,
        health_check_timeout_s=10.0,
    ).bind(
        checkpoint.name, checkpoint.digest, own_settings(settings),
        program_of(checkpoint, settings),
    )  # fmt: skip


def lacking(settings: Settings, free: Mapping[str, float]) -> str:
    """Say what the least replicas of a model want and is not free, "" where all is."""
    each = {"CPU": settings.replica_cpus, "GPU": settings.replica_gpus}
    wanted = {kind: settings.min_replicas * amount for kind, amount in each.items()}
    return " and ".join(
        f"{amount:g} {kind}s where {free.get(kind, 0):g} are free"
        for kind, amount in wanted.items()
        if amount > free.get(kind, 0) + 1e-6
    )


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


class RayReplicas:
    """The replicas of one deployment (``Replicas``)."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle
        self._drawing = handle.options(method_name="draw", stream=True)

    def draw(self, part: Part) -> Drawing:
        """Have the one with the fewest images draw a part."""
        drawing: Drawing = self._drawing.remote(part)
        return drawing

    async def meet(self, entrance: str, share: float, seconds: float) -> tuple[list[Report], int]:
        """Have all of them report; gives what came in so long, and how many said nothing."""
        answers = await asyncio.to_thread(_ask, self._handle, seconds, "meet", entrance, share)
        reports = [one for one in answers if isinstance(one, Report)]
        silent = sum(isinstance(one, TimeoutError) for one in answers)
        if not reports and not silent:
            raise next(one for one in answers if isinstance(one, Exception))
        return reports, silent


def open_fleet(
    checkpoint: Checkpoint, handle: DeploymentHandle, settings: Settings, metrics: ModelMetrics
) -> Fleet:
    """Reach the replicas of a model's deployment, and wait a while for the first of them."""
    replicas, config = RayReplicas(handle), checkpoint.model.config
    fleet = Fleet(checkpoint.name, config, replicas, settings.slots, settings.limits, metrics)
    metrics.show(fleet.metrics)
    fleet.start()
    fleet.met.wait(FIRST_REPORT_SECONDS)
    return fleet


def wait_listening(address: str, seconds: float) -> None:
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


def _programs(handle: DeploymentHandle, seconds: float) -> set[str]:
    """Ask all replicas what they run, for so long; nothing where there are none that say it."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            answers = _ask(handle, ANSWER_SECONDS, "program")
        except DeploymentUnavailableError:
            return set()
        if any(isinstance(answer, RayTaskError) for answer in answers):  # of another version
            return set()
        # Of a lost machine they say nothing, until Ray ends them.
        programs = {answer for answer in answers if isinstance(answer, str)}
        if programs or time.monotonic() > deadline:
            return programs
        time.sleep(0.5)


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
        if _programs(handle, 0) == {program}:  # none is left that runs anything else
            deadline = min(deadline, time.monotonic() + OTHERS_SECONDS)
        time.sleep(0.2)
    log.warning("%s: going on with the replicas there are", application)


def _cause(message: str) -> str:
    """Give the end of a traceback in words of Ray's: the error, and what it says."""
    lines = message.strip().splitlines() or ["Ray does not say why"]
    last = max((k for k, line in enumerate(lines) if _ERROR.match(line)), default=len(lines) - 1)
    return _ERROR.sub(r"\1: ", " ".join(line.strip() for line in lines[last:]), count=1)


class Cluster:
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
                object_store_memory=OBJECTS, log_to_driver=False,
            )  # fmt: skip
        else:
            wait_listening(os.environ[ADDRESS], JOIN_SECONDS)
            ray.init(log_to_driver=False)
        serve.start(proxy_location="Disabled")  # this process listens itself
        logging.getLogger("ray.serve").setLevel(logging.WARNING)  # it tells of every cancelled part

    def open(self, checkpoint: Checkpoint, settings: Settings, metrics: ModelMetrics) -> Fleet:
        """Run a model's deployment, unless it is there and runs the same, and reach its replicas.

        Raises ``BackendError`` where none can start, or where a cluster begun here, one machine
        that never grows, lacks what they want.
        """
        name, program = checkpoint.name, program_of(checkpoint, settings)
        here = settings.max_replicas_per_node
        if self._own and here is not None and here < settings.max_replicas:
            raise BackendError(
                f"{settings.max_replicas} replicas of {name} would never be: this is one machine, "
                f"which may have {here} (SCANLINE_MAX_REPLICAS_PER_NODE); set RAY_ADDRESS to a "
                "cluster of several, or leave it out"
            )
        application = f"scanline-{name}"
        there = None if self._own else serve.status().applications.get(application)
        if there is not None and there.status in GOING_ON:
            running = serve.get_app_handle(application)
            if _programs(running, LOST_SECONDS) == {program}:
                log.info("%s: its replicas are there, and go on", name)
                return open_fleet(checkpoint, running, settings, metrics)
        if there is None and (lack := lacking(settings, ray.available_resources())):
            what = f"the {settings.min_replicas} replicas of {name} want {lack}"
            if self._own:
                raise BackendError(
                    f"{what}: set SCANLINE_REPLICA_CPUS, SCANLINE_REPLICA_GPUS or "
                    "SCANLINE_MIN_REPLICAS lower, or serve fewer models"
                )
            log.warning("%s: waiting until they are free, or the cluster grows", what)
        target = serve.RunTarget(deployment(checkpoint, settings), application, route_prefix=None)
        (handle,) = serve.run_many([target], wait_for_applications_running=False)
        _wait_for_replicas(handle, application, program)
        return open_fleet(checkpoint, handle, settings, metrics)

    def leave(self) -> None:
        """End the cluster if it was begun here; another's goes on with its models."""
        if self._own:
            serve.shutdown()
        ray.shutdown()
