"""Reformer attention layer, which has no recurrent state."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from scanline.kernels.attention.lsh import CombineRounds, lsh_attention, random_rotations
from scanline.model.config import ModelConfig
from scanline.model.layers.attention import Attention
from scanline.model.layers.base import State

BUCKETS = 64  # as in the paper; it uses chunks of 32 positions, 29 for MNIST and 37 for CIFAR-10


def seed_hash_functions(seed: int, step: int) -> None:
    """Seed torch's generators, so that the hash functions of a training step depend on it only."""
    torch.manual_seed(int(np.random.default_rng([seed, 5, step]).integers(2**63)))


class LshAttention(Attention):
    """Causal attention between positions with the same hash; queries are also the keys.

    Only ``forward`` is supported: the positions that one position sees depend on later ones, so
    there is no recurrent state, and images are drawn by ``LinearTransformer.recompute_step``.

    In training mode every pass draws new hash functions with torch's generator, as the paper's
    authors do. In evaluation mode they are always the same, so that drawing and likelihoods are
    reproducible: their rotations are drawn when the layer is created, and stored with the weights
    under their checkpoint name ``turns``.
    """

    combine: CombineRounds
    turns: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        del self.key  # a query is its own key
        self.chunk, self.combine = config.lsh_chunk, config.lsh_combine
        rounds = int(config.attention.removeprefix("lsh-"))
        drawn = random_rotations(rounds, self.n_heads, self.head_size, BUCKETS)
        self.register_buffer("turns", drawn)

    def initial_state(self, rows: int) -> State:
        return {}

    def attend(self, x: Tensor) -> Tensor:
        heads = (*x.shape[:-1], self.n_heads, self.head_size)
        qk, v = self.query(x).view(heads), self.value(x).view(heads)
        rotations = torch.randn_like(self.turns) if self.training else self.turns
        return lsh_attention(qk, v, rotations, self.chunk, combine=self.combine)

    def prefill(self, x: Tensor, lengths: Tensor) -> NoReturn:
        self._refuse()

    def step(self, x: Tensor, state: State, steps: Tensor) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise RuntimeError(
            "lsh attention has no recurrent state, because which positions it sees depends on "
            "later ones: use recompute_step"
        )
