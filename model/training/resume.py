"""What a training run keeps to go on to the bit, and who may go on with it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from scanline.model.checkpoint import CheckpointError, load_facts, load_torch_file
from scanline.model.config import ModelConfig
from scanline.model.data.dataset import Dataset
from scanline.model.training.config import TrainingConfig

# What a resumed run may change: where it ends, and nothing else of a step.
_FREE = {"steps", "decay", "checkpoint_every", "evaluate_every", "compile"}

_KINDS: dict[str, type | tuple[type, ...]] = {
    "config": dict, "training": dict, "step": int, "seconds": (int, float), "validation": list,
    "model": dict, "average": dict, "optimizers": list,
}  # fmt: skip


def dataset_fingerprint(data: Dataset) -> str:
    """Give a hash of a data set's images and labels, and of their order."""
    digest = hashlib.sha256(np.ascontiguousarray(data.images).data)
    if data.labels is not None:
        digest.update(np.ascontiguousarray(data.labels).data)
    return digest.hexdigest()


def weights_path(folder: Path, saved: dict[str, Any]) -> Path:
    """Give where a run's weights go: into the file that they are in, else one named as its folder.

    A folder that was copied or renamed would else hold two, and might serve the one left behind.
    """
    name = folder.resolve().name.lstrip(".") or "model"  # of dot files nothing is served
    usual = folder / f"{name}.safetensors"
    former = folder / Path(saved.get("weights", usual.name)).name
    return former if former.is_file() else usual


def saved_defaults(weights: Path) -> dict[str, float]:
    """Read how images of a run's weights are drawn where nobody says otherwise, if they say."""
    try:
        known: dict[str, float] = load_facts(weights).get("defaults", {})
    except CheckpointError:  # none yet, or damaged ones, which are written anew
        return {}
    return known


class SavedRun(NamedTuple):
    """A run in its folder: what it trains, how, and how many images it held out.

    ``held_out`` is None where a former version wrote it. ``saved`` is what it began with, and its
    step.
    """

    network: ModelConfig
    training_config: TrainingConfig
    held_out: int | None
    saved: dict[str, Any]


def read_saved_run(folder: Path) -> SavedRun:
    """Read what a folder's run trains, and how, or raise ``CheckpointError``."""
    path = folder / "training.pt"
    saved = _read(path, torch.device("cpu"))
    known = {field.name for field in fields(TrainingConfig)}
    training_config = {name: value for name, value in saved["training"].items() if name in known}
    try:
        network = ModelConfig.from_dict(saved["config"])
        begun = {name: saved[name] for name in ("config", "training", "step")}
        return SavedRun(network, TrainingConfig(**training_config), saved.get("held_out"), begun)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be gone on with ({error}); start another") from None


def _read(path: Path, device: torch.device) -> dict[str, Any]:
    saved = load_torch_file(path, device)
    if not isinstance(saved, dict) or not all(
        isinstance(saved.get(name), kind) for name, kind in _KINDS.items()
    ):
        raise CheckpointError(f"{path} is not the state of a training run; start another")
    return saved


def load_training_state(
    path: Path, model: ModelConfig, training_config: TrainingConfig, device: torch.device
) -> dict[str, Any]:
    """Load the saved state of a run with this model and config, or raise ``CheckpointError``."""
    saved = _read(path, device)
    check_resumable(path, saved, model, training_config)
    return saved


def check_resumable(
    path: Path, saved: Mapping[str, Any], model: ModelConfig, training_config: TrainingConfig
) -> None:
    """Raise ``CheckpointError`` where a run cannot go on with this model and training_config."""
    mine = model.to_dict()
    if other := [name for name in mine if saved["config"].get(name) != mine[name]]:
        raise CheckpointError(
            f"{path} is of another model ({', '.join(other)}); "
            "name the same one, or give the run another folder"
        )
    now, then = asdict(training_config), asdict(TrainingConfig(steps=1)) | saved["training"]
    changed = [k for k in now | then if k not in _FREE and now.get(k) != then.get(k)]
    if changed:
        raise CheckpointError(
            f"{path} was trained with other settings ({', '.join(changed)}); "
            "give the same ones, or start again in another folder"
        )
    if saved["step"] > training_config.steps:
        raise CheckpointError(
            f"{path} has taken {saved['step']:,} steps, more than {training_config.steps:,}: "
            "give as many or more"
        )
