"""Random data augmentation: small shifts and horizontal mirroring."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from scanline.model.training.config import TrainingConfig, learning_rate_factor


def augment(
    canvas: Tensor, step: int, config: TrainingConfig, share: slice, height: int, width: int
) -> Tensor:
    """Shift and mirror one process's share of a step's batch, as ``config`` asks.

    Args:
        canvas: Images of the share, uint8 ``[B, T, C]``.
        step: Training step; with ``config.seed`` it determines all random choices.
        config: ``shift`` and ``mirror`` switch the augmentations on.
        share: The positions of the images in the whole batch.
        height: Image height in pixels; T = height × width.
        width: Image width in pixels.
    """
    if config.shift:
        shifts = torch.from_numpy(random_shifts(step, config)[share])
        canvas = shift_images(canvas, shifts, height, width)
    if config.mirror:
        mask = torch.from_numpy(mirror_mask(step, config)[share])
        images = canvas.unflatten(1, (height, width))
        canvas = torch.where(mask[:, None, None, None], images.flip(2), images).flatten(1, 2)
    return canvas


def mirror_mask(step: int, config: TrainingConfig) -> np.ndarray[Any, Any]:
    """Select the images of a step to mirror, each with probability 1/2, as bool ``[batch]``."""
    mask: np.ndarray[Any, Any] = (
        np.random.default_rng([config.seed, 3, step]).random(config.batch) < 0.5
    )
    return mask


def random_shifts(step: int, config: TrainingConfig) -> np.ndarray[Any, Any]:
    """Draw how many pixels each image of a step moves down and right, int64 ``[batch, 2]``.

    The share of images that may move is the learning rate factor: all of them at the full rate and
    none at the end. The network finishes training on images in their original position.
    """
    rng = np.random.default_rng([config.seed, 2, step])
    shifts = rng.integers(-config.shift, config.shift, (config.batch, 2), endpoint=True)
    fixed = rng.random(config.batch) >= learning_rate_factor(step, config)
    shifts[fixed] = 0
    return shifts


def shift_images(canvas: Tensor, shifts: Tensor, height: int, width: int) -> Tensor:
    """Shift images ``[B, T, C]`` by ``shifts: [B, 2]`` pixels down and right.

    Uncovered pixels repeat the nearest edge pixel, so no new intensities appear, unlike with
    rotation or scaling.
    """
    down, right = shifts.unbind(1)
    rows = (torch.arange(height) - down[:, None]).clamp(0, height - 1)
    columns = (torch.arange(width) - right[:, None]).clamp(0, width - 1)
    images = canvas.unflatten(1, (height, width))
    batch = torch.arange(len(canvas))[:, None, None]
    shifted: Tensor = images[batch, rows[:, :, None], columns[:, None, :]]
    return shifted.flatten(1, 2)
