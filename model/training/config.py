"""Training configuration and learning rate schedule.

The learning rate warms up, stays constant, and falls linearly to zero over the last part of the
run. A run can therefore be extended or shortened until that last part begins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SCHEDULE_SETTINGS = ("steps", "decay")  # of `learning_rate_factor`, besides `warmup`


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Settings of a training run.

    Attributes:
        steps: Length of the run.
        batch: Images per step, over all processes.
        seed: Seed of the weights, batches, dropped labels, augmentation and hash functions.
        learning_rate: AdamW's learning rate.
        muon_rate: Muon's learning rate, for the matrices of the blocks.
        edge_rate: AdamW's learning rate for the linear input and output maps; None means
            ``learning_rate``.
        weight_decay: Muon's weight decay; AdamW uses none.
        warmup: Steps of linear warm-up.
        decay: Share of the steps, at the end, over which the learning rates fall to zero.
        average: Decay of the moving average of the weights.
        drop_label: Share of images trained without their label.
        shift: Largest random shift in pixels; fewer images are shifted as the learning rate falls.
        mirror: Mirror each image with probability 1/2.
        dist_aug: Share of images that are turned or mirrored, with a vector that tells the network
            so (``orientation.py``); the share falls as the learning rate falls.
        checkpoint_every: Steps between checkpoints.
        evaluate_every: Steps between validations.
        precision: ``bf16``, ``fp32``, or ``auto`` for the faster of them on this machine.

    Raises:
        ValueError: If a setting is out of range.
    """

    steps: int = 20_000
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
    dist_aug: float = 0.0
    checkpoint_every: int = 250
    evaluate_every: int = 1000
    precision: str = "auto"

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
        for name in ("decay", "average", "drop_label", "dist_aug"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be 0 to 1, not {getattr(self, name)}")
        if self.precision not in ("auto", "bf16", "fp32"):
            raise ValueError(f"precision must be auto, bf16 or fp32, not {self.precision!r}")


def learning_rate_factor(step: int, config: TrainingConfig) -> float:
    """Return the learning rate at a step as a share of the full rate: warm-up, constant, decay."""
    warmup = min(1.0, (step + 1) / config.warmup) if config.warmup else 1.0
    decay_steps = config.decay * config.steps
    decay = min(1.0, (config.steps - step) / decay_steps) if decay_steps else 1.0
    return warmup * decay


def check_shift(shift: int, side: int) -> None:
    """Raise ``ValueError`` if a shift could move an image of ``side`` pixels out of its frame."""
    if shift >= side:
        raise ValueError(f"shift must be less than the image's {side} pixels a side; got {shift}")


def check_square(dist_aug: float, height: int, width: int) -> None:
    """Raise ``ValueError`` if images would be turned by 90 degrees that are not square."""
    if dist_aug and height != width:
        raise ValueError(
            f"dist_aug turns images by 90 degrees, so they must be square; got {width} x {height} "
            "pixels: leave it out"
        )
