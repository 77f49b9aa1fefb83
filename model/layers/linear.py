"""Causal linear attention as a layer (Katharopoulos et al. 2020, eq. 9-12 and 18-20)."""

from __future__ import annotations

import math

from torch import Tensor

from scanline.kernels.attention.definitions import (
    AttentionState,
    elu_feature_map,
    linear_attention_step,
)
from scanline.kernels.attention.linear import linear_attention
from scanline.model.config import ModelConfig
from scanline.model.layers.attention import Attention
from scanline.model.layers.layer import State


class LinearAttention(Attention):
    """Causal linear attention of ``n_heads`` heads.

    Its state is the sums of eq. 18 and 19, of one size whatever the position: ``kv: [N, H, K, V]``
    and ``z: [N, H, K]``.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.feature_map = config.feature_map

    def initial_state(self, rows: int) -> State:
        H, K = self.n_heads, self.head_size
        return {"kv": self.zeros(rows, H, K, K), "z": self.zeros(rows, H, K)}

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x)
        attended, _ = linear_attention(q, k, v, feature_map=self.feature_map)
        return self.joined(attended)

    def prefill(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, State]:
        q, k, v = self.qkv(x)
        # A key of -inf has no features, and so leaves nothing in the sums.
        beyond = lengths.new_tensor(range(x.shape[1])) >= lengths.unsqueeze(1)
        k = k.masked_fill(beyond[..., None, None], -math.inf)
        attended, sums = linear_attention(q, k, v, feature_map=self.feature_map)
        return self.joined(attended), {"kv": sums.kv, "z": sums.z}

    def step(self, x: Tensor, state: State, steps: Tensor) -> tuple[Tensor, State]:
        q, k, v = self.qkv(x)
        sums = AttentionState(state["kv"], state["z"])
        attended, sums = linear_attention_step(elu_feature_map(q), elu_feature_map(k), v, sums)
        return self.joined(attended), {"kv": sums.kv, "z": sums.z}
