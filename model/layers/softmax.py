"""Causal softmax attention as a layer, with every key and value for its state."""

from __future__ import annotations

import torch
from torch import Tensor

from scanline.kernels.attention.softmax import softmax_attention, softmax_attention_step
from scanline.model.config import ModelConfig
from scanline.model.layers.attention import Attention
from scanline.model.layers.base import State


class SoftmaxAttention(Attention):
    """Causal softmax attention of ``n_heads`` heads (the paper's *stateful-softmax*, as a step).

    Its state is ``keys`` and ``values``, ``[N, S, H, K]`` each, 0 where no step has been: room for
    every step of an image, of which each step reads as many as there were.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.steps = config.steps

    def initial_state(self, rows: int) -> State:
        shape = (self.steps, self.n_heads, self.head_size)
        return {"keys": self.zeros(rows, *shape), "values": self.zeros(rows, *shape)}

    def attend(self, x: Tensor) -> Tensor:
        return softmax_attention(*self.qkv(x))

    def prefill(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, State]:
        q, k, v = self.qkv(x)
        beyond = torch.arange(x.shape[1], device=x.device) >= lengths.unsqueeze(1)
        state = self.initial_state(len(x))
        for name, seen in (("keys", k), ("values", v)):
            state[name][:, : x.shape[1]] = seen.masked_fill(beyond[..., None, None], 0)
        return self.merge_heads(softmax_attention(q, k, v)), state

    def step(self, x: Tensor, state: State, steps: Tensor) -> Tensor:
        q, k, v = self.qkv(x)
        rows = torch.arange(len(x), device=x.device)
        keys, values = state["keys"], state["values"]
        keys[rows, steps], values[rows, steps] = k.to(keys.dtype), v.to(values.dtype)
        attended = softmax_attention_step(q.to(keys.dtype), keys, values, steps)
        return self.merge_heads(attended.to(x.dtype))
