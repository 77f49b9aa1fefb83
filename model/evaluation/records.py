"""A model's quality: measured, kept in its checkpoint, and read back from there."""

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
    """Measure a model's bits/dim on every image, on a CUDA device if there is one."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = checkpoint.model.to(device)
    return evaluate(network, data, with_label=with_label, device=device, progress=progress)


def record_evaluation(
    checkpoint: Checkpoint,
    folder: Path | None,
    data: Dataset,
    figure: Evaluation,
    *,
    with_label: bool = False,
) -> Path:
    """Write a figure into the facts of a folder's checkpoint, the shipped ones' by default.

    Gives its file, as the others do.
    """
    key = "test_with_label" if with_label else "test"
    known = {"standard_error": figure.finite_error, "data": data.title, "note": data.note}
    return _record(checkpoint, folder, key, dataclasses.asdict(figure) | known)


def record_defaults(
    checkpoint: Checkpoint, folder: Path | None, defaults: SamplingDefaults
) -> Path:
    """Write how a checkpoint's images are drawn where nobody says otherwise into its facts."""
    return _record(checkpoint, folder, "defaults", defaults._asdict())


def record_precision(checkpoint: Checkpoint, folder: Path | None, cost: PrecisionCost) -> Path:
    """Have a checkpoint drawn in this precision by the ``native`` backend from now on.

    Raises ``ValueError`` where that may cost more than ``MAX_COST`` bits/dim.
    """
    if not cost.acceptable:
        raise ValueError(
            f"{checkpoint.name} may lose more than {MAX_COST} bits/dim in {cost.precision}, by "
            f"{cost.images} images: not recorded; measure more, {MIN_IMAGES} at least, or leave "
            "it in another precision"
        )
    return _record(checkpoint, folder, "native_precision", dataclasses.asdict(cost))


def _record(checkpoint: Checkpoint, folder: Path | None, key: str, fact: dict[str, Any]) -> Path:
    """Add a fact to those that the file holds by now: measuring may have taken hours.

    Raises ``CheckpointError`` where its weights are no longer those measured.
    """
    path = (folder or SHIPPED_WEIGHTS) / f"{checkpoint.name}.safetensors"
    with folder_lock(path.resolve().parent):
        now = load_checkpoint(path)
        if not _same(now.model, checkpoint.model):
            raise CheckpointError(
                f"{path} holds other weights than those measured, as of a training that goes on: "
                "nothing is recorded; measure again"
            )
        save_checkpoint(path, now.model, now.facts | {key: fact})
    return path


def _same(one: LinearTransformer, other: LinearTransformer) -> bool:
    """Whether two networks are equal to the last bit, on whatever devices."""
    theirs = other.state_dict()
    return one.config == other.config and all(
        torch.equal(tensor.cpu(), theirs[name].cpu()) for name, tensor in one.state_dict().items()
    )


def recorded_bits_per_dim(facts: Mapping[str, Any]) -> float | None:
    """Read the bits/dim that a checkpoint's facts tell: of the test set, else the last validation.

    Without a label; None where it was never measured.
    """
    measured = [facts.get("test"), *reversed(facts.get("validation") or [])]
    figures = [float(figure["bits_per_dim"]) for figure in measured if figure]
    return figures[0] if figures else None
