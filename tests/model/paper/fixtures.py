"""Shared settings of the paper tests: small networks and short experiments."""

from __future__ import annotations

from dataclasses import replace

import torch

from scanline.model.paper.copy_task import FIGURE2
from scanline.model.paper.scaling import ScalingSettings
from tests.conftest import tiny_config

CPU = torch.device("cpu")
SMALL = ScalingSettings(shortest=2**4, longest=2**6, n_heads=2, head_size=8, repeats=1)
TASK = replace(FIGURE2.quick, length=8, d_model=32, d_ff=32, steps=40, seeds=2, batch=16)
NETWORK = tiny_config(
    input="previous", order="subpixel", channels=3, norm="post", positions="sinusoidal"
)
