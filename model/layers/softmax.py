"""Causal softmax attention layer with a key-value cache."""

from __future__ import annotations

import torch
from torch import Tensor

from scanline.kernels.attention.softmax import softmax_attention, softmax_attention_step
from scanline.model.config import ModelConfig
from scanline.model.layers.attention import Attention
from scanline.model.layers.base import State


class SoftmaxAttention(Attention):
    """Causal softmax attention with ``n_heads`` heads (the paper's *stateful-softmax*).

    Its state is a cache of ``keys`` and ``values``, each ``[N, H, S, K]``, with room for every step
    of an image and zeros from the current step on. Each step reads only the steps before it.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.steps = config.steps

    def initial_state(self, rows: int) -> State:
        shape = (self.n_heads, self.steps, self.head_size)
        return {"keys": self.zeros(rows, *shape), "values": self.zeros(rows, *shape)}

    def attend(self, x: Tensor) -> Tensor:
        return softmax_attention(*self.qkv(x))

    def prefill(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, State]:
        q, k, v = self.qkv(x)
        beyond = torch.arange(x.shape[1], device=x.device) >= lengths.unsqueeze(1)
        state = self.initial_state(len(x))
        for name, new in (("keys", k), ("values", v)):
            known = new.masked_fill(beyond[..., None, None], 0)
            state[name][:, :, : x.shape[1]] = known.transpose(1, 2)
        return self.merge_heads(softmax_attention(q, k, v)), state

    def step(self, x: Tensor, state: State, steps: Tensor) -> Tensor:
        q, k, v = self.qkv(x)
        rows = torch.arange(len(x), device=x.device)
        keys, values = state["keys"], state["values"]
        keys[rows, :, steps], values[rows, :, steps] = k.to(keys.dtype), v.to(values.dtype)
        attended = softmax_attention_step(q.to(keys.dtype), keys, values, steps)
        return self.merge_heads(attended.to(x.dtype))
