"""Short causal 2-D depthwise convolution over the pixel, its left and its upper neighbours."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scanline.kernels.short_conv import TAPS, convolve_steps
from scanline.model.config import ModelConfig
from scanline.model.layers.base import Layer, State


class ShortConv(Layer):
    """Depthwise convolution with five weights per feature, initialised to the identity.

    Its state is ``ring: [N, W + 1, D]``, a ring buffer of the last inputs. Step s is at index
    s modulo the length, and the oldest entry is the neighbour above left.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.columns = config.width
        self.length = self.columns + 1
        weight = torch.zeros(TAPS, config.d_model)
        weight[0] = 1
        self.weight = nn.Parameter(weight)

    def initial_state(self, rows: int) -> State:
        return {"ring": self.zeros(rows, self.length, self.weight.shape[1])}

    def forward(self, x: Tensor) -> Tensor:
        return convolve_steps(x, self.weight, self.columns)

    def prefill(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, State]:
        last = lengths.unsqueeze(1) - 1
        index = torch.arange(self.length, device=x.device)
        steps = last - (last - index) % self.length  # the last step stored at each index
        state = self.initial_state(len(x))
        kept = x.gather(1, steps.clamp(min=0).unsqueeze(-1).expand(-1, -1, x.shape[2]))
        state["ring"] += kept.masked_fill((steps < 0).unsqueeze(-1), 0)
        return self(x), state

    def step(self, x: Tensor, state: State, steps: Tensor) -> Tensor:
        ring = state["ring"]
        rows = torch.arange(len(x), device=x.device)
        column = (steps % self.columns).unsqueeze(1)

        def previous(distance: int) -> Tensor:
            return ring[rows, (steps - distance) % self.length]  # zeros before the first step

        above_right = previous(self.columns - 1)
        y = self.weight[0] * x
        y = y + self.weight[1] * previous(1).masked_fill(column == 0, 0)
        y = y + self.weight[2] * previous(self.columns + 1).masked_fill(column == 0, 0)
        y = y + self.weight[3] * previous(self.columns)
        y = y + self.weight[4] * above_right.masked_fill(column == self.columns - 1, 0)
        ring[rows, steps % self.length] = x.to(ring.dtype)
        return y.to(x.dtype)
