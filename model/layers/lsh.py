"""Reformer's attention as a layer: all positions at once, to train and to compare with."""

from __future__ import annotations

from typing import NoReturn

from torch import Tensor

from scanline.kernels.attention.lsh import lsh_attention, random_rotations
from scanline.model.config import ModelConfig
from scanline.model.layers.attention import Attention
from scanline.model.layers.base import State

BUCKETS = 64  # as the paper has it, with chunks of 32 positions


class LshAttention(Attention):
    """Causal attention of ``n_heads`` heads among positions that hash alike, its queries the keys.

    It has ``forward`` alone: which positions one sees depends on later ones, so there is no state
    from which to go on. The hashes' turns are drawn with the first weights and kept beside them.
    """

    turns: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        del self.key  # a query is its own key
        rounds = int(config.attention.removeprefix("lsh-"))
        drawn = random_rotations(rounds, self.n_heads, self.head_size, BUCKETS)
        self.register_buffer("turns", drawn)

    def initial_state(self, rows: int) -> State:
        return {}

    def attend(self, x: Tensor) -> Tensor:
        heads = (*x.shape[:-1], self.n_heads, self.head_size)
        qk, v = self.query(x).view(heads), self.value(x).view(heads)
        return lsh_attention(qk, v, self.turns)

    def prefill(self, x: Tensor, lengths: Tensor) -> NoReturn:
        self._refuse()

    def step(self, x: Tensor, state: State, steps: Tensor) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise RuntimeError(
            "lsh attention can be trained and scored, but not drawn with: what a position sees "
            "depends on later ones, so it has no state to go on from"
        )
