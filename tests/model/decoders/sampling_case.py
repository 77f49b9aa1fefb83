"""Head parameters and sampling options, and the values that the head draws with them.

The sampling of each GPU kernel is compared with the head on these.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scanline.model.config import ModelConfig
from scanline.model.decoders.base import InputBatch
from scanline.model.network import LinearTransformer
from tests.model.decoders.fixtures import blank, noise_of, scatter_seeds


class SamplingCase(NamedTuple):
    """A step of N images.

    Attributes:
        inputs: Their options; N images, whose twins are in the slots N to 2 N - 1.
        parameters: The head's output with the label: float32 ``[N, P]``.
        unconditional: The head's output without it: float32 ``[N, P]``.
        values: What the head draws: uint8 ``[N, C]``.
    """

    inputs: InputBatch
    parameters: Tensor
    unconditional: Tensor
    values: NDArray[np.uint8]


def head_parameters(config: ModelConfig, rows: int, seed: int) -> Tensor:
    """Return random parameters of distributions that are neither flat nor degenerate."""
    generator = torch.Generator().manual_seed(seed)
    parameters = torch.randn(rows, config.head_outputs, generator=generator)
    if config.head == "categorical":
        parameters[..., 40:] -= 4
    else:
        parameters[:, 10 * (1 + config.channels) : 10 * (1 + 2 * config.channels)] -= 2
    return parameters


def sampling_case(network: LinearTransformer) -> SamplingCase:
    """Return a case with several values of every sampling option."""
    config, count = network.config, 10
    inputs = blank(config, count)
    scatter_seeds(inputs)
    inputs.temperature[:] = np.resize(np.array([1, 0.7, 0, 1.3], np.float32), count)
    inputs.top_p[:] = np.resize(np.array([1, 0.5, 0.02], np.float32), count)
    inputs.guidance[:] = np.resize(np.array([1, 2.5, 0, 1, 10], np.float32), count)
    parameters, unconditional = (head_parameters(config, count, seed) for seed in (1, 2))
    parameters[4:6] = parameters[4:6].round()  # many equal weights
    unconditional[4:6] = unconditional[4:6].round()
    parameters[8] = 0
    values = network.head.sample(
        parameters, torch.from_numpy(noise_of(inputs, config)[:, 0]),
        torch.from_numpy(inputs.temperature), torch.from_numpy(inputs.top_p),
        torch.from_numpy(inputs.guidance), unconditional,
    )  # fmt: skip
    return SamplingCase(inputs, parameters, unconditional, values.numpy())


def twins_of(inputs: InputBatch) -> NDArray[np.int32]:
    """Return the twin slot of each image in a batch of N: N to 2 N - 1, -1 without guidance."""
    count = len(inputs.seed)
    twins = np.where(inputs.guidance != 1, np.arange(count, 2 * count), -1)
    return twins.astype(np.int32)


def rows_of(
    inputs: InputBatch, parameters: Tensor, unconditional: Tensor
) -> tuple[NDArray[np.int32], Tensor]:
    """Return the slots and the head parameters of a kernel's rows: each image, then its twin."""
    slots = np.stack([np.arange(len(inputs.seed), dtype=np.int32), twins_of(inputs)], 1).ravel()
    return slots, torch.stack([parameters, unconditional], 1).flatten(0, 1)
