"""What a network says of a picture: the bits of each pixel, and what it expects next."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from scanline.model.config import VALUES
from scanline.model.network import LinearTransformer

BATCH = 16  # pictures scored at once: bounds the memory that one request takes


@torch.inference_mode()
def pixel_bits(
    network: LinearTransformer, canvases: NDArray[np.uint8], label: int | NDArray[np.integer]
) -> NDArray[np.float32]:
    """Give the exact cost of each pixel of some pictures: uint8 ``[B, T, C]`` → ``[B, T]``.

    ``label`` is a class or -1, one for all or one a picture.
    """
    labels = np.broadcast_to(label, len(canvases)).astype(np.int64)
    parts: list[NDArray[np.float32]] = []
    for first in range(0, len(canvases), BATCH):
        batch = slice(first, first + BATCH)
        # A copy, for torch wants them writeable, and not backwards.
        some = torch.from_numpy(canvases[batch].copy())
        with torch.autocast("cpu", enabled=False):  # a caller's would round what is exact
            bits = network.bits(some, torch.from_numpy(labels[batch]))
        parts.append(bits.numpy())
    return np.concatenate(parts)


@torch.inference_mode()
def next_value(
    network: LinearTransformer, values: Sequence[int], label: int
) -> NDArray[np.float32]:
    """Give the probability of each of the 256 values that may follow ``values``: ``[256]``.

    ``values`` are in raster order with the channels innermost, fewer than an image has; ``label``
    is a class's number, or -1 for none.
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
    labels = torch.tensor([label])
    state = network.initial_state(1)
    if position:
        state, _ = network.prefill(pixels, torch.tensor([position]), labels)
    first_step = position * config.steps_per_pixel
    last_step = first_step + channel // config.step_channels
    parameters = torch.empty(0)
    for step in range(first_step, last_step + 1):
        if step < network.first_step:
            continue
        parameters = network.step(pixels, torch.tensor([step]), state, labels)
    channels, channel = config.step_channels, channel % config.step_channels
    drawn = pixels[:, position, :channels].long()
    log_probabilities = network.head.log_probs(parameters, channel, drawn)
    probabilities: NDArray[np.float32] = log_probabilities[0].exp().numpy()
    return probabilities
