"""Batches of a training step: order of the images, augmentation and label dropping."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from scanline.model.config import NO_LABEL, ModelConfig
from scanline.model.training.augmentation import augment
from scanline.model.training.config import TrainingConfig
from scanline.model.training.orientation import draw_orientations, orient, with_orientations

Batch = tuple[Tensor, Tensor | None]  # images uint8 [B, T, C], and labels int64 [B] or [B, 2]


def make_batch(
    step: int, images: Tensor, labels: Tensor | None, config: TrainingConfig, share: slice,
    network: ModelConfig,
) -> Batch:  # fmt: skip
    """Build one process's share of a step's batch, on the device of ``images``.

    Args:
        step: Training step; with ``config.seed`` it determines all random choices.
        images: The whole training set, uint8 ``[N, T, C]``.
        labels: Its labels, int64 ``[N]``, or None.
        config: Batch size, augmentation, and the share of labels to drop.
        share: The positions in the whole batch that this process takes.
        network: Image size and classes.

    Returns:
        Images ``[B, T, C]`` and labels ``[B]``. A dropped label is ``NO_LABEL`` (-1), which trains
        the unconditional distribution. Labels are None if the network has no classes. With
        ``config.dist_aug`` they have a second column, as an ``OrientedTransformer`` needs them.
    """
    indices = torch.from_numpy(batch_indices(step, len(images), config)[share])
    canvas = augment(images[indices], step, config, share, network.height, network.width)
    chosen: Tensor | None = None
    if network.classes and labels is not None:
        draws = np.random.default_rng([config.seed, 1, step]).random(config.batch)[share]
        dropped = torch.from_numpy(draws < config.drop_label)
        chosen = labels[indices].masked_fill(dropped, NO_LABEL)
    if config.dist_aug:
        orientations = torch.from_numpy(draw_orientations(step, config)[share])
        canvas = orient(canvas, orientations, network.height)
        chosen = with_orientations(chosen, orientations)
    return canvas, chosen


def batch_indices(step: int, count: int, config: TrainingConfig) -> npt.NDArray[np.int64]:
    """Return the indices of a step's images, int64 ``[batch]``, out of ``count`` images.

    Each epoch is a new permutation with the seed ``[seed, epoch]``. In step 0, dropped labels,
    shifts, mirroring, orientations and hash functions have the seeds ``[seed, 1..5, 0]``. These
    equal the seeds of epochs 1 to 5, because numpy ignores trailing zeros. Other seeds would change
    runs that are resumed.
    """
    positions = np.arange(step * config.batch, (step + 1) * config.batch)
    indices = np.empty(config.batch, np.int64)
    for epoch in np.unique(positions // count):
        order = np.random.default_rng([config.seed, int(epoch)]).permutation(count)
        chosen = positions // count == epoch
        indices[chosen] = order[positions[chosen] % count]
    return indices
