"""Distribution augmentation (DistAug, Jun et al. 2020): turned and mirrored images, told apart.

A network that is trained on turned images draws turned images. If a learned vector tells it the
orientation of each training image, it learns from all of them and draws upright ones. Upright
images have no vector, so the trained network without the vectors is the one to evaluate and serve.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from scanline.model.config import NO_LABEL, ModelConfig
from scanline.model.network import LinearTransformer
from scanline.model.training.config import TrainingConfig, learning_rate_factor

ORIENTATIONS = 8  # four rotations of the image and of its mirror image; 0 is upright


class OrientedTransformer(LinearTransformer):
    """Network in training with a learned input vector for each orientation but the upright one.

    Its labels are int64 ``[B, 2]``: the label, -1 for none, and the orientation.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.orientation = nn.Parameter(torch.zeros(ORIENTATIONS - 1, config.d_model))

    def embed(self, canvas: Tensor, steps: Tensor, labels: Tensor | None) -> Tensor:
        """Return the input of the first layer: ``steps: int64 [B, S]`` → ``[B, S, D]``."""
        if labels is None:
            raise ValueError("a network in training with dist_aug needs labels of two columns")
        label, orientation = labels.unbind(1)
        x = super().embed(canvas, steps, label if self.config.classes else None)
        upright = self.orientation.new_zeros(1, self.config.d_model)
        return x + torch.cat([upright, self.orientation])[orientation].unsqueeze(1)


def draw_orientations(step: int, config: TrainingConfig) -> np.ndarray[Any, Any]:
    """Draw the orientation of each image of a step, int64 ``[batch]``.

    The share of images that are not upright is ``dist_aug`` times the learning rate factor. The
    network finishes training on upright images.
    """
    rng = np.random.default_rng([config.seed, 4, step])
    orientations = rng.integers(1, ORIENTATIONS, config.batch)
    share = config.dist_aug * learning_rate_factor(step, config)
    orientations[rng.random(config.batch) >= share] = 0
    return orientations


def orient(canvas: Tensor, orientations: Tensor, side: int) -> Tensor:
    """Turn square images ``uint8 [B, T, C]`` into their orientations ``[B]``.

    Orientation k is k % 4 quarter turns counter-clockwise, after mirroring left to right if k > 3.
    """
    images = canvas.unflatten(1, (side, side))
    turned = torch.empty_like(images)
    for k in range(ORIENTATIONS):
        these = orientations == k
        mirrored = images[these].flip(2) if k > 3 else images[these]
        turned[these] = mirrored.rot90(k % 4, (1, 2))
    return turned.flatten(1, 2)


def with_orientations(labels: Tensor | None, orientations: Tensor) -> Tensor:
    """Return labels for an ``OrientedTransformer``: int64 ``[B, 2]``."""
    if labels is None:
        labels = torch.full_like(orientations, NO_LABEL)
    return torch.stack([labels, orientations], 1)
