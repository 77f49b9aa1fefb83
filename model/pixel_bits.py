"""Per-pixel bits of images, and the distributions of the next pixel's values."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from scanline.model.config import NO_LABEL, VALUES
from scanline.model.network import LinearTransformer

BATCH = 16  # images per batch, which bounds the memory per request


def likelihood_network(network: LinearTransformer, device: torch.device) -> LinearTransformer:
    """Return a network to measure likelihoods with on a device; on the CPU it is the same one.

    On a CUDA device this scores an image, so that no request waits for the compiler.
    """
    if device.type == "cpu":
        return network
    network = copy.deepcopy(network).to(device)
    config = network.config
    pixel_bits(network, np.zeros((1, config.pixels, config.channels), np.uint8), NO_LABEL)
    pixel_distributions(network, [0] * config.channels if config.pixels > 1 else [], [NO_LABEL])
    return network


@torch.inference_mode()
def pixel_bits(
    network: LinearTransformer, canvases: NDArray[np.uint8], label: int | NDArray[np.integer]
) -> NDArray[np.float32]:
    """Return the exact bits of each pixel: uint8 ``[B, T, C]`` → float32 ``[B, T]``.

    ``label`` is a class or -1, one for all images or one each. The network may be on any device.
    """
    device = next(network.parameters()).device
    labels = np.broadcast_to(label, len(canvases)).astype(np.int64)
    parts: list[NDArray[np.float32]] = []
    for first in range(0, len(canvases), BATCH):
        batch = slice(first, first + BATCH)
        # Copied, because torch needs writable arrays without negative strides.
        images = torch.from_numpy(canvases[batch].copy()).to(device)
        # A caller's autocast would round the result.
        with torch.autocast(device.type, enabled=False):
            bits = network.bits(images, torch.from_numpy(labels[batch]).to(device))
        parts.append(bits.cpu().numpy())
    return np.concatenate(parts)


@torch.inference_mode()
def pixel_distributions(
    network: LinearTransformer, values: Sequence[int], labels: Sequence[int]
) -> NDArray[np.float32]:
    """Return the distributions of the channels of the pixel of the next value.

    Args:
        network: The network, on any device.
        values: The values so far, in raster order with the channels innermost; fewer than an image
            has.
        labels: A class number, or -1 for none, per row of the result.

    Returns:
        float32 ``[B, K, 256]``: for each label, the probabilities of the K channels up to the next
        value, each given the values before it.
    """
    config = network.config
    position, next_channel = divmod(len(values), config.channels)
    canvas = np.zeros(config.values, np.uint8)
    canvas[: len(values)] = values
    device = next(network.parameters()).device
    pixels = torch.from_numpy(canvas.reshape(1, config.pixels, config.channels)).to(device)
    pixels, rows = pixels.repeat(len(labels), 1, 1), torch.tensor(labels, device=device)
    state = network.initial_state(len(labels))
    if position:
        state, _ = network.prefill(pixels, torch.full_like(rows, position), rows)
    parameters = torch.empty(0)
    distributions: list[Tensor] = []
    for channel in range(next_channel + 1):
        step, within_step = divmod(channel, config.step_channels)
        step += position * config.steps_per_pixel
        if step < network.first_step:  # not modelled: the first value is fixed
            certain = F.one_hot(torch.full_like(rows, config.first_value), VALUES)
            distributions.append(certain.float())
            continue
        if within_step == 0:
            parameters = network.step(pixels, torch.full_like(rows, step), state, rows)
        first = channel - within_step
        decided = pixels[:, position, first : first + config.step_channels].long()
        distributions.append(network.head.log_probs(parameters, within_step, decided).exp())
    stacked: NDArray[np.float32] = torch.stack(distributions, 1).cpu().numpy()
    return stacked
