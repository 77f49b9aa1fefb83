"""Input layers: embed the values decided before a step as one vector of features."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scanline.kernels.ops.embedding import embedding_sum
from scanline.kernels.ops.linear import full_precision_linear
from scanline.model.config import NEIGHBOURS, TABLE_ENTRIES, VALUES, ModelConfig
from scanline.model.portable_math import exp, sin_cos

LN_BASE = 9.210340371976184  # ln 10,000
OUTSIDE = VALUES  # id of a neighbour outside the image or not yet decided


def neighbour_index(height: int, width: int) -> Tensor:
    """Return the pixel numbers of each pixel's neighbours, T if outside: int64 ``[T, 17]``."""
    rows = torch.arange(height).view(-1, 1, 1) + torch.tensor([row for row, _ in NEIGHBOURS])
    columns = torch.arange(width).view(1, -1, 1) + torch.tensor([col for _, col in NEIGHBOURS])
    inside = (rows >= 0) & (columns >= 0) & (columns < width)
    index = torch.where(inside, rows * width + columns, height * width)
    return index.view(height * width, len(NEIGHBOURS))


def sinusoidal_code(positions: Tensor, size: int) -> Tensor:
    """Return sinusoidal position encodings with base 10,000 (Vaswani et al. 2017, §3.5).

    ``positions: [P]`` → float32 ``[P, size]``, with sines in the even columns.
    """
    exponents = torch.arange(0, size, 2).float() * (-LN_BASE / size)
    frequencies = torch.from_numpy(exp(exponents.double().numpy())).float()
    angles = positions.cpu().float().unsqueeze(1) * frequencies
    code = np.stack(sin_cos(angles.double().numpy()), -1)
    return torch.from_numpy(code).float().flatten(1)


class PreviousInput(nn.Module):
    """Embedding of the previous value (as in the paper); a learned vector for the first step."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.sinusoidal = config.positions == "sinusoidal"
        size = config.embedding_size
        self.value_embedding = nn.Embedding(VALUES, size)
        self.start: nn.Parameter | None = None
        if config.start == "learned":
            self.start = nn.Parameter(torch.randn(config.d_model) * 0.02)
        if self.sinusoidal:
            # The code belongs to the embedded value, so step t has the code of t - 1.
            code = sinusoidal_code(torch.arange(config.steps) - 1, size)
            self.register_buffer("code", code, persistent=False)

    def forward(self, canvas: Tensor, steps: Tensor) -> Tensor:
        """Embed steps: canvas uint8 ``[B, T, C]``, steps ``[B, S]`` → ``[B, S, D]``."""
        values = canvas.flatten(1).long()
        x: Tensor = self.value_embedding(values.gather(1, (steps - 1).clamp(min=0)))
        if self.sinusoidal:
            code: Tensor = self.get_buffer("code")[steps]
            x = torch.cat([x, code], -1)
        if self.start is not None:
            x = torch.where((steps == 0).unsqueeze(-1), self.start, x)
        return x


class NeighbourhoodInput(nn.Module):
    """Embedding of the 17 causal neighbours by a table per place, or by a linear map.

    A place is one channel of one neighbour. If a step decides one value of an RGB pixel, the
    pixel's own red and green are places too, "outside" until they are decided.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.step_channels = config.step_channels
        self.steps_per_pixel = config.steps_per_pixel
        self.sinusoidal = config.positions == "sinusoidal"
        size = config.embedding_size
        index = neighbour_index(config.height, config.width)
        self.register_buffer("index", index, persistent=False)
        self.places = config.places
        self.tables: nn.Parameter | None = None
        self.linear: nn.Linear | None = None
        if config.encoding == "linear":
            self.linear = nn.Linear(2 * self.places, size)
        else:
            offsets = torch.arange(self.places) * TABLE_ENTRIES
            self.register_buffer("offsets", offsets, persistent=False)
            self.tables = nn.Parameter(torch.randn(self.places * TABLE_ENTRIES, size) * 0.02)
        if self.sinusoidal:
            code = sinusoidal_code(torch.arange(config.steps), size)
            self.register_buffer("code", code, persistent=False)

    def place_ids(self, canvas: Tensor, steps: Tensor) -> Tensor:
        """Return the value at each place, 0-255, or 256 for outside: int64 ``[B, S, places]``."""
        B, _, C = canvas.shape
        with_outside = F.pad(canvas.short(), (0, 0, 0, 1), value=OUTSIDE)
        pixels = steps // self.steps_per_pixel
        around = self.get_buffer("index")[pixels]  # [B, S, 17]
        rows = torch.arange(B, device=canvas.device).view(B, 1, 1)
        ids = with_outside[rows, around].flatten(2)
        if self.steps_per_pixel > 1:
            own = with_outside[rows[..., 0], pixels][..., :-1]
            earlier = torch.arange(C - 1, device=canvas.device)
            decided = earlier < (steps % self.steps_per_pixel).unsqueeze(-1)
            ids = torch.cat([ids, own.masked_fill(~decided, OUTSIDE)], -1)
        return ids.long()

    def forward(self, canvas: Tensor, steps: Tensor) -> Tensor:
        """Embed steps: canvas uint8 ``[B, T, C]``, steps ``[B, S]`` → ``[B, S, D]``."""
        ids = self.place_ids(canvas, steps)
        B, S, places = ids.shape
        if self.linear is not None:
            outside = ids == OUTSIDE
            features = self.linear.weight.dtype
            intensities = (ids.to(features) / 127.5 - 1).masked_fill(outside, 0)
            seen = torch.cat([intensities, outside.to(features)], -1)
            x = full_precision_linear(seen, self.linear.weight, self.linear.bias)
        else:
            assert self.tables is not None
            bags = (ids + self.get_buffer("offsets")).view(-1, places)
            x = embedding_sum(self.tables, bags).view(B, S, -1)
        if self.sinusoidal:
            code: Tensor = self.get_buffer("code")[steps]
            x = torch.cat([x, code.expand(B, S, -1)], -1)
        return x


class Positions(nn.Module):
    """Learned position embeddings, row plus column, for networks with one step per pixel."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.width = config.width
        self.row = nn.Parameter(torch.randn(config.height, config.d_model) * 0.02)
        self.column = nn.Parameter(torch.randn(config.width, config.d_model) * 0.02)

    def forward(self, steps: Tensor) -> Tensor:
        """Embed steps: ``[B, S]`` → ``[B, S, D]``."""
        rows = steps.div(self.width, rounding_mode="floor")
        return F.embedding(rows, self.row) + F.embedding(steps % self.width, self.column)
