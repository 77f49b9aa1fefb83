"""Per-pixel bits of images, and the distribution of the next value."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

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
    next_value(network, [0] * config.channels if config.pixels > 1 else [], NO_LABEL)
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
def next_value(
    network: LinearTransformer, values: Sequence[int], label: int
) -> NDArray[np.float32]:
    """Return the probabilities of the next value: float32 ``[256]``.

    Args:
        network: The network.
        values: The values so far, in raster order with the channels innermost; fewer than an image
            has.
        label: A class number, or -1 for none.
    """
    config = network.config
    canvas = np.zeros(config.values, np.uint8)
    canvas[: len(values)] = values
    if not values and config.start == "given":  # not modelled: the first value is fixed
        certain = np.zeros(VALUES, np.float32)
        certain[config.first_value] = 1
        return certain
    device = next(network.parameters()).device
    pixels = torch.from_numpy(canvas.reshape(1, config.pixels, config.channels)).to(device)
    position, channel = divmod(len(values), config.channels)
    labels = torch.tensor([label], device=device)
    state = network.initial_state(1)
    if position:
        state, _ = network.prefill(pixels, torch.tensor([position], device=device), labels)
    first_step = position * config.steps_per_pixel
    last_step = first_step + channel // config.step_channels
    parameters = torch.empty(0)
    for step in range(first_step, last_step + 1):
        if step < network.first_step:
            continue
        parameters = network.step(pixels, torch.tensor([step], device=device), state, labels)
    channels, channel = config.step_channels, channel % config.step_channels
    decided = pixels[:, position, :channels].long()
    log_probabilities = network.head.log_probs(parameters, channel, decided)
    probabilities: NDArray[np.float32] = log_probabilities[0].exp().cpu().numpy()
    return probabilities
