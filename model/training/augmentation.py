"""What makes more of few images: each seen moved, or in a mirror, as chance has it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from scanline.model.training.config import TrainingConfig, learning_rate_factor


def augment(
    canvas: Tensor, step: int, config: TrainingConfig, share: slice, height: int, width: int
) -> Tensor:
    """Move and mirror the pictures ``[B, T, C]`` of a ``share`` of a step's batch."""
    if config.shift:
        canvas = shift_images(
            canvas, torch.from_numpy(random_shifts(step, config)[share]), height, width
        )
    if config.mirror:
        chosen = torch.from_numpy(mirror_mask(step, config)[share])
        pictures = canvas.unflatten(1, (height, width))
        canvas = torch.where(chosen[:, None, None, None], pictures.flip(2), pictures).flatten(1, 2)
    return canvas


def mirror_mask(step: int, config: TrainingConfig) -> np.ndarray[Any, Any]:
    """Choose which of a step's images are seen in a mirror, bool ``[batch]``."""
    chosen: np.ndarray[Any, Any] = (
        np.random.default_rng([config.seed, 3, step]).random(config.batch) < 0.5
    )
    return chosen


def random_shifts(step: int, config: TrainingConfig) -> np.ndarray[Any, Any]:
    """Choose how far a step's images are moved down and right, in pixels, int64 ``[batch, 2]``.

    At the learning rate's height every image draws a move, which may be none, and at its end no
    image does: what is learnt last is what the images are like where they stand.
    """
    draw = np.random.default_rng([config.seed, 2, step])
    moves = draw.integers(-config.shift, config.shift, (config.batch, 2), endpoint=True)
    stays = draw.random(config.batch) >= learning_rate_factor(step, config)
    moves[stays] = 0
    return moves


def shift_images(canvas: Tensor, moves: Tensor, height: int, width: int) -> Tensor:
    """Move pictures ``[B, T, C]`` by ``moves: [B, 2]``; what comes in repeats the edge it came by.

    Every intensity stays one of the picture's own, as turning or scaling would not have it.
    """
    down, right = moves.unbind(1)
    rows = (torch.arange(height) - down[:, None]).clamp(0, height - 1)
    columns = (torch.arange(width) - right[:, None]).clamp(0, width - 1)
    pictures = canvas.unflatten(1, (height, width))
    each = torch.arange(len(canvas))[:, None, None]
    shown: Tensor = pictures[each, rows[:, :, None], columns[:, None, :]]
    return shown.flatten(1, 2)
