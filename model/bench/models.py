"""The models that are timed: checkpoints, and presets with random weights."""

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
    """Give a shipped model, or a preset with random weights; raises ``ValueError`` on others."""
    shipped = _shipped()
    if name in shipped:
        return load_checkpoint(shipped[name])
    if name in PRESETS:
        torch.manual_seed(0)
        return Checkpoint(name, LinearTransformer(PRESETS[name]).eval())
    raise ValueError(f"there is no {name!r}; there are {', '.join(sorted({*shipped, *PRESETS}))}")


def find_models(
    names: Sequence[str] = (), weights: Path | None = None, default: Sequence[str] = ()
) -> list[Checkpoint]:
    """Give these models, of a folder of ``weights`` if there is one, else as ``find_model``.

    Where none are named, all of the folder; without one ``default``, or the paper's and the
    shipped ones.
    """
    if weights is not None:
        return load_checkpoints(weights, names)
    return [find_model(name) for name in names or default or [*PAPER, *_shipped()]]


def _shipped() -> dict[str, Path]:
    try:
        return find_checkpoints(SHIPPED_WEIGHTS)
    except CheckpointError:
        return {}
