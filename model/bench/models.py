"""Models to benchmark: checkpoints, and presets with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from scanline.model.checkpoint import (
    SHIPPED_WEIGHTS,
    Checkpoint,
    CheckpointError,
    find_checkpoints,
    load_checkpoint,
    load_checkpoints,
)
from scanline.model.config import PRESETS
from scanline.model.network import LinearTransformer

PAPER = ("mnist-paper", "cifar10-paper")


def find_model(name: str) -> Checkpoint:
    """Load a shipped model, or create a preset with random weights.

    Raises:
        ValueError: If there is no model or preset of this name.
    """
    shipped = _shipped()
    if name in shipped:
        return load_checkpoint(shipped[name])
    if name in PRESETS:
        torch.manual_seed(0)
        return Checkpoint(name, LinearTransformer(PRESETS[name]).eval())
    choices = ", ".join(sorted({*shipped, *PRESETS}))
    raise ValueError(f"unknown model {name!r}: choose {choices}")


def find_models(
    names: Sequence[str] = (), weights: Path | None = None, default: Sequence[str] = ()
) -> list[Checkpoint]:
    """Load the models to benchmark.

    Args:
        names: Names of the models; empty means all of the folder, or the default.
        weights: Folder of checkpoints; None means shipped models and presets (``find_model``).
        default: Names if neither names nor a folder are given; empty means the paper's networks and
            the shipped models.
    """
    if weights is not None:
        return load_checkpoints(weights, names)
    return [find_model(name) for name in names or default or [*PAPER, *_shipped()]]


def _shipped() -> dict[str, Path]:
    try:
        return find_checkpoints(SHIPPED_WEIGHTS)
    except CheckpointError:
        return {}
