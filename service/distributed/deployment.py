"""A model as a deployment of Ray Serve: what its replicas run, and how they are scaled."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig

from scanline import kernels, model, service
from scanline.model.checkpoint import Checkpoint
from scanline.service import __version__
from scanline.service.distributed.replica import Replica
from scanline.service.settings import Settings

REPLICA_SETTINGS = {  # settings; the others are the frontend's
    "backend", "slots", "threads", "min_replicas", "max_replicas", "max_replicas_per_node",
    "replica_images", "replica_cpus", "replica_gpus", "scale_up_seconds", "scale_down_seconds",
    "drain_seconds", "log_format", "log_level",
}  # fmt: skip
CODE = (".py", ".h", ".cpp", ".cu")  # files of this package that say what is drawn
END_SECONDS = 5.0  # that a replica told to end has to finish its parts
MAX_ONGOING_ITEMS = 100_000  # of a replica: how many it has is the frontend's to say


def explicit_settings(settings: Settings, keep_key: bool = False) -> dict[str, Any]:
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


def program_id(checkpoint: Checkpoint, settings: Settings) -> str:
    """Name what a model's replicas run: this package's version, and a hash of all that counts."""
    theirs = json.dumps(settings.model_dump(include=REPLICA_SETTINGS, mode="json"), sort_keys=True)
    digest = hashlib.sha256("\0".join([_sources(), checkpoint.digest, theirs]).encode())
    return f"{__version__} {digest.hexdigest()}"


def make_deployment(checkpoint: Checkpoint, settings: Settings) -> Any:
    """Give a model's deployment, scaled by its images' slots, not yet run."""
    scaling = AutoscalingConfig(
        min_replicas=settings.min_replicas,
        max_replicas=settings.max_replicas,
        target_ongoing_requests=settings.replica_images or settings.slots,
        upscale_delay_s=settings.scale_up_seconds,
        downscale_delay_s=settings.scale_down_seconds,
        metrics_interval_s=1.0,
        look_back_period_s=2.0,
        policy=AutoscalingPolicy(
            policy_function="scanline.service.distributed.autoscaling:replicas_for_slots"
        ),
    )
    routing = RequestRouterConfig(
        request_router_class="scanline.service.distributed.routing:FewestImagesRouter"
    )
    return serve.deployment(
        Replica,
        name=checkpoint.name,
        max_ongoing_requests=MAX_ONGOING_ITEMS,
        autoscaling_config=scaling,
        request_router_config=routing,
        ray_actor_options={"num_cpus": settings.replica_cpus, "num_gpus": settings.replica_gpus},
        max_replicas_per_node=settings.max_replicas_per_node,
        # What it has is drawn again by others; one that hangs holds it for as long as that.
        graceful_shutdown_timeout_s=min(settings.drain_seconds, END_SECONDS),
        # The third in a row that is not answered ends it.
        health_check_period_s=2.0,
        health_check_timeout_s=5.0,
    ).bind(
        checkpoint.name, checkpoint.digest, explicit_settings(settings),
        program_id(checkpoint, settings),
    )  # fmt: skip
