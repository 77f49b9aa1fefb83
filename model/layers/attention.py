"""Attention of several heads as a layer: the projections that every kind of it has."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scanline.model.config import ModelConfig
from scanline.model.layers.base import Layer


class Attention(Layer):
    """Projects to queries, keys and values of ``n_heads`` heads, and from what they attend to.

    All kinds have the same weights under the same names; how the heads attend is each kind's own.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        D = config.d_model
        self.n_heads, self.head_size = config.n_heads, config.head_size
        self.query = nn.Linear(D, D)
        self.key = nn.Linear(D, D)
        self.value = nn.Linear(D, D)
        self.out = nn.Linear(D, D)

    def projection(self) -> tuple[Tensor, Tensor]:
        """Give the weight ``[3 D, D]`` and bias ``[3 D]`` of queries, keys and values together."""
        parts = (self.query, self.key, self.value)
        # One wide product is faster than three.
        return torch.cat([part.weight for part in parts]), torch.cat([part.bias for part in parts])

    def qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Give queries, keys and values: ``[..., D]`` → three of ``[..., H, K]``."""
        if x.ndim == 2:  # a step: putting the weights together would cost more than it saves
            q, k, v = (part(x) for part in (self.query, self.key, self.value))
        else:
            q, k, v = F.linear(x, *self.projection()).chunk(3, -1)
        heads = (*x.shape[:-1], self.n_heads, self.head_size)
        return q.view(heads), k.view(heads), v.view(heads)

    @abstractmethod
    def attend(self, x: Tensor) -> Tensor:
        """Give what the heads read at all steps: ``[B, S, D]`` → ``[B, S, H, K]``."""

    def forward(self, x: Tensor) -> Tensor:
        return self.merge_heads(self.attend(x))

    def merge_heads(self, attended: Tensor) -> Tensor:
        """Give the layer's output from that of its heads: ``[..., H, K]`` → ``[..., D]``."""
        y: Tensor = self.out(attended.flatten(-2))
        return y
