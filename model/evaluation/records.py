"""Evaluation results in checkpoints: measure, record and read them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from scanline.model.atomic_files import folder_lock
from scanline.model.checkpoint import (
    SHIPPED_WEIGHTS,
    Checkpoint,
    CheckpointError,
    SamplingDefaults,
    load_checkpoint,
    save_checkpoint,
)
from scanline.model.data.dataset import Dataset
from scanline.model.evaluation.likelihood import Evaluation, evaluate
from scanline.model.evaluation.precision import MAX_COST, MIN_IMAGES, PrecisionCost
from scanline.model.network import LinearTransformer


def evaluate_checkpoint(
    checkpoint: Checkpoint,
    data: Dataset,
    *,
    with_label: bool = False,
    progress: Callable[[int], object] = lambda done: None,
) -> Evaluation:
    """Measure a checkpoint's bits/dim over a data set, on a CUDA device if there is one."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = checkpoint.model.to(device)
    return evaluate(network, data, with_label=with_label, device=device, progress=progress)


def record_evaluation(
    checkpoint: Checkpoint,
    folder: Path | None,
    data: Dataset,
    result: Evaluation,
    *,
    with_label: bool = False,
) -> Path:
    """Record an evaluation in the facts of a checkpoint file and return its path.

    Args:
        checkpoint: The evaluated checkpoint.
        folder: The folder of the file; None for the shipped weights.
        data: The data set.
        result: The result.
        with_label: Whether the true labels were given.

    Raises:
        CheckpointError: If the weights of the file are not those of ``checkpoint``.
    """
    key = "test_with_label" if with_label else "test"
    details = {"standard_error": result.finite_error, "data": data.title, "note": data.note}
    return _record(checkpoint, folder, key, result.row() | details)


def record_defaults(
    checkpoint: Checkpoint, folder: Path | None, defaults: SamplingDefaults
) -> Path:
    """Record sampling defaults in a checkpoint file and return its path."""
    return _record(checkpoint, folder, "defaults", defaults._asdict())


def record_precision(checkpoint: Checkpoint, folder: Path | None, cost: PrecisionCost) -> Path:
    """Record a precision for the ``native`` backend in a checkpoint file and return its path.

    Raises ``ValueError`` if it may cost more than ``MAX_COST`` bits/dim.
    """
    if cost.images < MIN_IMAGES:
        raise ValueError(
            f"not recorded: {cost.images} images are too few to judge a precision: measure at "
            f"least {MIN_IMAGES} images"
        )
    if not cost.acceptable:
        raise ValueError(
            f"not recorded: by these {cost.images:,} images {checkpoint.name} may lose more than "
            f"{MAX_COST} bits/dim in {cost.precision}; choose another precision, or measure more "
            "images if the standard error is large"
        )
    return _record(checkpoint, folder, "native_precision", dataclasses.asdict(cost))


def _record(checkpoint: Checkpoint, folder: Path | None, key: str, fact: dict[str, Any]) -> Path:
    """Add a fact to the current facts of the file, because measuring may have taken hours.

    Raises ``CheckpointError`` if the weights of the file have changed since.
    """
    path = (folder or SHIPPED_WEIGHTS) / f"{checkpoint.name}.safetensors"
    with folder_lock(path.resolve().parent):
        current = load_checkpoint(path)
        if not _same_weights(current.model, checkpoint.model):
            raise CheckpointError(
                f"nothing is recorded: the weights in {path} have changed since the measurement, "
                "perhaps by a training run; measure again"
            )
        save_checkpoint(path, current.model, current.facts | {key: fact})
    return path


def _same_weights(one: LinearTransformer, other: LinearTransformer) -> bool:
    """Return True if two networks are bitwise equal, on any devices."""
    tensors = other.state_dict()
    return one.config == other.config and all(
        torch.equal(tensor.cpu(), tensors[name].cpu()) for name, tensor in one.state_dict().items()
    )


def recorded_bits_per_dim(facts: Mapping[str, Any]) -> float | None:
    """Return the recorded bits/dim without a label, or None if there is none.

    The test set takes precedence over the last validation.
    """
    measured = [facts.get("test"), *reversed(facts.get("validation") or [])]
    values = [float(result["bits_per_dim"]) for result in measured if result]
    return values[0] if values else None
