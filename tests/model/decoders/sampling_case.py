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


def _two_values(config: ModelConfig, share: float) -> Tensor:
    """Return parameters: at temperature 0.5, ``share`` of the value 50, and the rest of 200."""
    logs = 0.5 * torch.tensor([share, 1 - share]).log()
    if config.head == "categorical":
        parameters = torch.full((config.head_outputs,), -20.0)
        parameters[[50, 200]] = logs
        return parameters
    parameters = torch.zeros(config.head_outputs)
    parameters[:10] = -20
    parameters[:2] = logs
    means, log_scales = parameters[10 : 10 * (1 + 2 * config.channels)].view(2, -1, 10)
    means[:, :2] = torch.tensor([50, 200]) / 127.5 - 1
    log_scales[:] = -7  # at temperature 0.5, almost all of a component's mass is at one value
    return parameters


def sampling_case(network: LinearTransformer) -> SamplingCase:
    """Return a case with several values of every sampling option.

    The last two images are next to the boundary of guidance with top-p, which cuts off the least
    likely (1 - top_p) / 4 of the conditional distribution: one just keeps the value that guidance
    prefers, the other one just loses it.
    """
    config, count = network.config, 12
    inputs = blank(config, count)
    scatter_seeds(inputs)
    inputs.temperature[:] = np.resize(np.array([1, 0.7, 0, 1.3], np.float32), count)
    inputs.top_p[:] = np.resize(np.array([1, 0.5, 0.02], np.float32), count)
    inputs.guidance[:] = np.resize(np.array([1, 2.5, 0, 1, 10], np.float32), count)
    parameters, unconditional = (head_parameters(config, count, seed) for seed in (1, 2))
    parameters[4:6] = parameters[4:6].round()  # many equal weights
    unconditional[4:6] = unconditional[4:6].round()
    parameters[8] = 0
    inputs.temperature[-2:], inputs.top_p[-2:], inputs.guidance[-2:] = 0.5, 0.5, 2.5
    parameters[-2:] = torch.stack([_two_values(config, share) for share in (0.865, 0.885)])
    unconditional[-2:] = _two_values(config, 0.999)
    values = network.head.sample(
        parameters, torch.from_numpy(noise_of(inputs, config)[:, 0]),
        torch.from_numpy(inputs.temperature), torch.from_numpy(inputs.top_p),
        torch.from_numpy(inputs.guidance), unconditional,
    )  # fmt: skip
    assert values[-2:, 0].tolist() == [200, 50]
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
