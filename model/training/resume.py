"""Saved state of a run (``training.pt``) and the checks before resuming it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from scanline.model.checkpoint import TRAINING_STATE, CheckpointError, load_facts
from scanline.model.config import ModelConfig
from scanline.model.data.dataset import Dataset
from scanline.model.torch_files import load_torch_file
from scanline.model.training.config import SCHEDULE_SETTINGS, TrainingConfig

# Settings that a resumed run may change, because they change no step before the decay.
_CHANGEABLE = {*SCHEDULE_SETTINGS, "checkpoint_every", "evaluate_every"}
_RETIRED = {"compile"}  # settings of earlier versions, ignored

_STATE_TYPES: dict[str, type | tuple[type, ...]] = {
    "config": dict, "training": dict, "step": int, "seconds": (int, float), "validation": list,
    "model": dict, "average": dict, "optimizers": list,
}  # fmt: skip


def dataset_fingerprint(data: Dataset) -> str:
    """Return the SHA-256 of a data set's images and labels, in their order."""
    digest = hashlib.sha256(np.ascontiguousarray(data.images).data)
    if data.labels is not None:
        digest.update(np.ascontiguousarray(data.labels).data)
    return digest.hexdigest()


def weights_path(folder: Path, saved: dict[str, Any]) -> Path:
    """Return the path of a run's weights: the file named in ``saved``, else ``FOLDER.safetensors``.

    Keeping the existing name avoids a second, outdated weights file in a folder that was copied or
    renamed.
    """
    name = folder.resolve().name.lstrip(".") or "model"  # the server ignores hidden files
    default = folder / f"{name}.safetensors"
    existing = folder / Path(saved.get("weights", default.name)).name
    return existing if existing.is_file() else default


def saved_defaults(weights: Path) -> dict[str, float]:
    """Read the sampling defaults that a weights file stores, or {} if there are none."""
    try:
        defaults: dict[str, float] = load_facts(weights).get("defaults", {})
    except CheckpointError:  # missing or damaged: about to be written
        return {}
    return defaults


class SavedRun(NamedTuple):
    """A saved run's network, settings and number of held-out images.

    ``held_out`` is None if an earlier version saved the run. ``saved`` holds the state's entries
    ``config``, ``training`` and ``step``.
    """

    network: ModelConfig
    training_config: TrainingConfig
    held_out: int | None
    saved: dict[str, Any]


def read_saved_run(folder: Path) -> SavedRun:
    """Read the run saved in a folder.

    Raises:
        CheckpointError: If there is none, or this version cannot continue it.
    """
    path = folder / TRAINING_STATE
    saved = _read(path, torch.device("cpu"))
    known = {field.name for field in fields(TrainingConfig)}
    settings = {name: value for name, value in saved["training"].items() if name in known}
    try:
        network = ModelConfig.from_dict(saved["config"])
        entries = {name: saved[name] for name in ("config", "training", "step")}
        return SavedRun(network, TrainingConfig(**settings), saved.get("held_out"), entries)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be resumed ({error}); start a new run") from None


def _read(path: Path, device: torch.device) -> dict[str, Any]:
    saved = load_torch_file(path, device)
    if not isinstance(saved, dict) or not all(
        isinstance(saved.get(name), kind) for name, kind in _STATE_TYPES.items()
    ):
        raise CheckpointError(f"{path} is not the state of a training run; start a new run")
    return saved


def load_training_state(
    path: Path, model: ModelConfig, training_config: TrainingConfig, device: torch.device
) -> dict[str, Any]:
    """Load the saved state of a run with this network and these settings.

    Raises:
        CheckpointError: If the state is missing, damaged, or refused by ``check_resumable``.
    """
    saved = _read(path, device)
    check_resumable(path, saved, model, training_config)
    return saved


def check_resumable(
    path: Path, saved: Mapping[str, Any], model: ModelConfig, training_config: TrainingConfig
) -> None:
    """Raise ``CheckpointError`` if a saved run has another network or incompatible settings."""
    now, then = model.to_dict(), saved["config"]
    if different := [name for name in now | then if now.get(name) != then.get(name)]:
        raise CheckpointError(
            f"{path} was saved with another network ({', '.join(different)}); "
            "choose the same network, or another folder"
        )
    now, then = asdict(training_config), asdict(TrainingConfig()) | saved["training"]
    ignored = _CHANGEABLE | _RETIRED
    changed = [k for k in now | then if k not in ignored and now.get(k) != then.get(k)]
    if changed:
        raise CheckpointError(
            f"{path} was saved with other settings ({', '.join(changed)}); "
            "choose the same settings, or another folder"
        )
    if saved["step"] > training_config.steps:
        raise CheckpointError(
            f"{path} is already at step {saved['step']:,}: --steps must be at least that; "
            f"got {training_config.steps:,}"
        )
