"""How a run goes: its settings, learning rate, and which images each step sees.

The learning rate warms up, stays, and falls to zero over the last part of the run, so a run can be
made longer or shorter until that part begins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How a run goes; raises ``ValueError`` on settings that make no sense.

    ``learning_rate`` is AdamW's, but ``edge_rate``, unless None, that of the linear maps before and
    behind the blocks; ``muon_rate`` is that of the blocks' matrices, and ``weight_decay`` theirs
    alone. ``warmup``, ``checkpoint_every`` and ``evaluate_every`` are in steps; ``seed`` chooses
    weights, batches, dropped labels, moves and mirrors. ``precision`` is ``bf16``, ``fp32`` or
    ``auto``. ``batch`` counts images over all processes. ``drop_label`` is the share of images
    trained without their label, ``average`` the moving average's decay, ``decay`` the share of the
    steps at the end over which the learning rate falls to zero. ``shift`` is by how many pixels an
    image may be moved each way; fewer and fewer are as the learning rate falls. With ``mirror``
    every second image, by chance, is seen in a mirror.
    """

    steps: int
    batch: int = 16
    seed: int = 0
    learning_rate: float = 2e-3
    muon_rate: float = 0.02
    edge_rate: float | None = None
    weight_decay: float = 0.01
    warmup: int = 100
    decay: float = 0.4
    average: float = 0.998
    drop_label: float = 0.2
    shift: int = 0
    mirror: bool = False
    checkpoint_every: int = 250
    evaluate_every: int = 1000
    precision: str = "auto"
    compile: bool = False

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "checkpoint_every", "evaluate_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in (
            "learning_rate", "muon_rate", "edge_rate", "weight_decay", "warmup", "seed", "shift",
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")
        for name in ("decay", "average", "drop_label"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be 0 to 1, not {getattr(self, name)}")
        if self.precision not in ("auto", "bf16", "fp32"):
            raise ValueError(f"precision must be auto, bf16 or fp32, not {self.precision!r}")


def learning_rate_factor(step: int, config: TrainingConfig) -> float:
    """Give the share of the full learning rate at a step: up, level, and down to 0 at the end."""
    up = min(1.0, (step + 1) / config.warmup) if config.warmup else 1.0
    tail = config.decay * config.steps
    down = min(1.0, (config.steps - step) / tail) if tail else 1.0
    return up * down


def batch_indices(step: int, count: int, config: TrainingConfig) -> np.ndarray[Any, Any]:
    """Choose a step's images, int64 ``[batch]``: each epoch is a new order by its own seed.

    That of epochs 1 to 3 is also what step 0 drops, moves and mirrors by, for numpy ends a seed's
    numbers with zeros; another would change the runs that go on.
    """
    positions = np.arange(step * config.batch, (step + 1) * config.batch)
    indices = np.empty(config.batch, np.int64)
    for epoch in np.unique(positions // count):
        order = np.random.default_rng([config.seed, int(epoch)]).permutation(count)
        chosen = positions // count == epoch
        indices[chosen] = order[positions[chosen] % count]
    return indices


def check_shift(shift: int, side: int) -> None:
    """Raise ``ValueError`` where pictures that are ``side`` pixels short would be moved away."""
    if shift >= side:
        raise ValueError(
            f"shift {shift} moves all of a picture with {side} pixels a side out of sight: give "
            "less"
        )
