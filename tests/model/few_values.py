"""Small network that draws only three values, so that all its images can be enumerated."""

from __future__ import annotations

import torch

from scanline.model.config import ModelConfig
from scanline.model.network import LinearTransformer
from tests.conftest import random_network, tiny_config

VALUES = 3  # number of values that the small networks draw
SMALL = tiny_config(height=2, width=3, classes=("cat", "dog"))


def small_network(config: ModelConfig, seed: int = 0) -> LinearTransformer:
    """Return a network that draws only three values, conditioned on earlier pixels."""
    network = random_network(config, seed, torch.float32)
    with torch.no_grad():
        network.head.predictor.weight.mul_(3)
        network.head.predictor.bias[:VALUES] = 0
        network.head.predictor.bias[VALUES:] = -60
    return network
