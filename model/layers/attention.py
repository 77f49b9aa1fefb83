"""Base class of the multi-head attention layers, with the shared projections."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scanline.model.config import ModelConfig
from scanline.model.layers.base import Layer


class Attention(Layer):
    """Multi-head attention with query, key, value and output projections.

    Subclasses define how the heads attend. All have the same parameter names.
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
        """Return the joint weight ``[3 D, D]`` and bias ``[3 D]`` of queries, keys and values."""
        parts = (self.query, self.key, self.value)
        # One wide product is faster than three.
        return torch.cat([part.weight for part in parts]), torch.cat([part.bias for part in parts])

    def qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values: ``[..., D]`` → three tensors ``[..., H, K]``."""
        if x.ndim == 2:  # one step: joining the weights would cost more than it saves
            q, k, v = (part(x) for part in (self.query, self.key, self.value))
        else:
            q, k, v = F.linear(x, *self.projection()).chunk(3, -1)
        heads = (*x.shape[:-1], self.n_heads, self.head_size)
        return q.view(heads), k.view(heads), v.view(heads)

    @abstractmethod
    def attend(self, x: Tensor) -> Tensor:
        """Return the outputs of the heads at all steps: ``[B, S, D]`` → ``[B, S, H, K]``."""

    def forward(self, x: Tensor) -> Tensor:
        return self.merge_heads(self.attend(x))

    def merge_heads(self, attended: Tensor) -> Tensor:
        """Apply the output projection to the heads' outputs: ``[..., H, K]`` → ``[..., D]``."""
        y: Tensor = self.out(attended.flatten(-2))
        return y
