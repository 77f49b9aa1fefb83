"""Ray Serve deployment of a model: its replicas' settings, program and autoscaling."""

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
from scanline.service.settings import REPLICA_SETTINGS, Settings

SOURCE_SUFFIXES = (".py", ".h", ".cpp", ".cu")
SHUTDOWN_SECONDS = 5.0  # for a replica to finish its work items when it is stopped
MAX_ONGOING_ITEMS = 100_000  # the frontend decides how many work items a replica gets


def explicit_settings(settings: Settings, keep_key: bool = False) -> dict[str, Any]:
    """Return the settings that were set explicitly, by field name.

    All others take their defaults on each machine, such as the folder of the weights. The number of
    slots is always included, because an image must fit into every replica.

    Args:
        settings: The frontend's settings.
        keep_key: Include the API key.
    """
    own = settings.model_dump(exclude_unset=True, exclude={"api_key", "api_key_file"})
    own["slots"] = settings.slots
    if settings.api_key_file is not None or not keep_key:
        own["api_key_file"] = None  # the file may not exist there, even if the variable is set
    if "weights" in own:  # replicas have another working directory
        own["weights"] = settings.weights.absolute()
    if keep_key and settings.api_key is not None:
        own["api_key"] = settings.api_key.get_secret_value()
    return own


@functools.cache
def _source_hash() -> str:
    """Return a hash of this package's source code."""
    digest = hashlib.sha256()
    for part in (kernels, model, service):
        folder = Path(next(iter(part.__path__)))
        for path in sorted(path for path in folder.rglob("*") if path.suffix in SOURCE_SUFFIXES):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _shutdown_seconds(settings: Settings) -> float:
    return min(settings.drain_seconds, SHUTDOWN_SECONDS)


def program_id(checkpoint: Checkpoint, settings: Settings) -> str:
    """Return the version, and a hash of the code, the weights and the replicas' settings."""
    theirs = settings.model_dump(include=REPLICA_SETTINGS, mode="json")
    theirs["shutdown_seconds"] = _shutdown_seconds(settings)
    text = json.dumps(theirs, sort_keys=True)
    digest = hashlib.sha256("\0".join([_source_hash(), checkpoint.digest, text]).encode())
    return f"{__version__} {digest.hexdigest()}"


def make_deployment(checkpoint: Checkpoint, settings: Settings) -> Any:
    """Return a model's deployment, not started yet, which scales with the slots of its images."""
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
        # Other replicas draw unfinished images again, but wait for this one if it hangs.
        graceful_shutdown_timeout_s=_shutdown_seconds(settings),
        # Ray stops a replica after three failed checks in a row.
        health_check_period_s=2.0,
        health_check_timeout_s=5.0,
    ).bind(
        checkpoint.name, checkpoint.digest, explicit_settings(settings),
        program_id(checkpoint, settings),
    )  # fmt: skip
