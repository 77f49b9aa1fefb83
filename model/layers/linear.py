"""Causal linear attention layer (Katharopoulos et al. 2020, eq. 9-12 and 18-20)."""

from __future__ import annotations

from torch import Tensor

from scanline.kernels.attention.features import (
    DIRECTED_MAPS,
    feature_count,
    features,
    random_directions,
)
from scanline.kernels.attention.naive import AttentionState, linear_attention_step
from scanline.kernels.ops.attention import linear_attention, projected_linear_attention
from scanline.model.config import ModelConfig
from scanline.model.layers.attention import Attention
from scanline.model.layers.base import State


class LinearAttention(Attention):
    """Causal linear attention with ``n_heads`` heads and any feature map.

    Its state is the sums of eq. 18 and 19, whose size does not depend on the position:
    ``kv: [N, H, F, V]`` and ``z: [N, H, F]`` for F features. The directions of random features are
    drawn when the layer is created, and stored with the weights.
    """

    directions: Tensor | None

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.feature_map = config.feature_map
        directed = config.feature_map in DIRECTED_MAPS
        drawn = random_directions(self.head_size) if directed else None
        self.register_buffer("directions", drawn)

    def features(self, x: Tensor) -> Tensor:
        """Map queries or keys to features: ``[..., K]`` → ``[..., F]``."""
        return features(x, self.feature_map, self.directions)

    def initial_state(self, rows: int) -> State:
        H, K = self.n_heads, self.head_size
        features = feature_count(self.feature_map, K)
        return {"kv": self.zeros(rows, H, features, K), "z": self.zeros(rows, H, features)}

    def attend(self, x: Tensor) -> Tensor:
        return projected_linear_attention(
            x, *self.projection(), self.n_heads, self.feature_map, self.directions
        )

    def prefill(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, State]:
        q, k, v = self.qkv(x)
        attended, sums = linear_attention(self.features(q), self.features(k), v, lengths=lengths)
        return self.merge_heads(attended), {"kv": sums.kv, "z": sums.z}

    def step(self, x: Tensor, state: State, steps: Tensor) -> Tensor:
        q, k, v = self.qkv(x)
        sums = AttentionState(state["kv"], state["z"])
        return self.merge_heads(linear_attention_step(self.features(q), self.features(k), v, sums))
