"""The models that are timed: the shipped ones, and presets with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from scanline.model.checkpoint import (
    SHIPPED,
    Checkpoint,
    CheckpointError,
    find_checkpoints,
    load_checkpoint,
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


def find_models(names: Sequence[str]) -> list[Checkpoint]:
    """Give these models, the paper's and the shipped ones if none are named."""
    return [find_model(name) for name in names or [*PAPER, *_shipped()]]


def _shipped() -> dict[str, Path]:
    try:
        return find_checkpoints(SHIPPED)
    except CheckpointError:
        return {}
