"""A step's batch, as chance has it: which images, how each is shown, and whose labels are told."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from scanline.model.config import NO_LABEL, ModelConfig
from scanline.model.training.augmentation import augment
from scanline.model.training.config import TrainingConfig, batch_indices

Batch = tuple[Tensor, Tensor | None]  # images uint8 [B, T, C], and labels int64 [B]


def make_batch(
    step: int, images: Tensor, labels: Tensor | None, config: TrainingConfig, share: slice,
    network: ModelConfig,
) -> Batch:  # fmt: skip
    """Give a process's ``share`` of a step's images and labels, where those of all of them lie.

    ``images: uint8 [N, T, C]``, ``labels: int64 [N]`` or None → ``[B, T, C]``, ``[B]``; -1 is the
    label of images whose own is not told. None where the network has no classes.
    """
    indices = torch.from_numpy(batch_indices(step, len(images), config)[share])
    canvas = augment(images[indices], step, config, share, network.height, network.width)
    if not network.classes or labels is None:
        return canvas, None
    draws = np.random.default_rng([config.seed, 1, step]).random(config.batch)[share]
    dropped = torch.from_numpy(draws < config.drop_label)
    return canvas, labels[indices].masked_fill(dropped, NO_LABEL)
