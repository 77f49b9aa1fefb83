"""What a network says of a picture: the bits of each pixel, and what it expects next."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from scanline.model.config import NO_LABEL, VALUES
from scanline.model.heads import Head, channel_means, logistic_log_prob, split_mixture
from scanline.model.network import LinearTransformer, State

BATCH = 16  # pictures scored at once: bounds the memory that one request takes


def _labels(network: LinearTransformer, label: int, rows: int) -> Tensor | None:
    classes = len(network.config.classes)
    if not classes:
        return None
    return torch.full((rows,), classes if label == NO_LABEL else label)


@torch.inference_mode()
def pixel_bits(
    network: LinearTransformer, canvases: NDArray[np.uint8], label: int
) -> NDArray[np.float32]:
    """Give the exact cost of each pixel of some pictures: uint8 ``[B, T, C]`` → ``[B, T]``."""
    parts: list[NDArray[np.float32]] = []
    for first in range(0, len(canvases), BATCH):
        batch = torch.from_numpy(canvases[first : first + BATCH])
        parts.append(network.bits(batch, _labels(network, label, len(batch))).numpy())
    return np.concatenate(parts)


@torch.inference_mode()
def next_value(
    network: LinearTransformer, values: Sequence[int], label: int
) -> NDArray[np.float32]:
    """Give the probability of each of the 256 values that may follow ``values``: ``[256]``.

    ``values`` are in raster order with the channels innermost, fewer than an image has.
    """
    config = network.config
    canvas = np.zeros(config.values, np.uint8)
    canvas[: len(values)] = values
    if not values and config.start == "given":  # never modelled: every image begins with it
        certain = np.zeros(VALUES, np.float32)
        certain[config.first_value] = 1
        return certain
    pixels = torch.from_numpy(canvas.reshape(1, config.pixels, config.channels))
    position, channel = divmod(len(values), config.channels)
    labels = _labels(network, label, 1)
    state = State.zeros(config, 1)
    if position:
        state, _ = network.prefill(pixels, torch.tensor([position]), labels)
    first_step = position * config.steps_per_pixel
    last_step = first_step + channel // config.step_channels
    parameters = torch.empty(0)
    for step in range(first_step, last_step + 1):
        if step == 0 and config.start == "given":
            continue
        parameters, state = network.step(pixels, torch.tensor([step]), state, labels)
    drawn = pixels[:, position, :] if config.step_channels > 1 else pixels[:, position, :1]
    return _distribution(network.head, parameters, channel % config.step_channels, drawn)


def _distribution(
    head: Head, parameters: Tensor, channel: int, values: Tensor
) -> NDArray[np.float32]:
    """Give one channel's distribution, given the step's earlier channels: ``[256]``."""
    if head.categorical:
        logits = head.logits(parameters, channel, values.long())
        probabilities: NDArray[np.float32] = F.softmax(logits[0], -1).numpy()
        return probabilities
    mixture = split_mixture(parameters, head.channels)
    everything = torch.arange(VALUES).view(-1, 1) / 127.5 - 1
    scaled = values / 127.5 - 1
    log_weights = F.log_softmax(mixture.weights, -1)
    for earlier in range(channel):  # the components' weights given the values before (Bayes)
        means = channel_means(mixture, earlier, scaled)
        log_weights = log_weights + logistic_log_prob(
            scaled[:, earlier : earlier + 1], means, mixture.log_scales[:, earlier]
        )
    each = logistic_log_prob(
        everything, channel_means(mixture, channel, scaled), mixture.log_scales[:, channel]
    )
    log_probabilities = torch.logsumexp(log_weights + each, -1)
    # Rounding leaves a sum that is not quite 1.
    result: NDArray[np.float32] = F.softmax(log_probabilities, -1).numpy()
    return result
