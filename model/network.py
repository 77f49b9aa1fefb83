"""The linear transformer, in its three views: ``forward``, ``prefill`` and ``step``."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scanline.kernels.attention.definitions import (
    AttentionState,
    elu_feature_map,
    linear_attention_step,
)
from scanline.kernels.attention.linear import linear_attention
from scanline.model.config import ModelConfig
from scanline.model.heads import Head
from scanline.model.inputs import NeighbourhoodInput, Positions, PreviousInput


class State(NamedTuple):
    """All that rows carry between steps: ``kv [L, B, H, K, V]`` and ``z [L, B, H, K]``, float32."""

    kv: Tensor
    z: Tensor

    @classmethod
    def zeros(cls, config: ModelConfig, rows: int, dtype: torch.dtype = torch.float32) -> State:
        """Give the state of ``rows`` images before their first step."""
        L, H, K = config.n_layers, config.n_heads, config.head_size
        kv = torch.zeros(L, rows, H, K, K, dtype=dtype)
        return cls(kv, torch.zeros(L, rows, H, K, dtype=dtype))


class Block(nn.Module):
    """One layer: causal linear attention, then a feed-forward network, each added to its input."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        D = config.d_model
        self.n_heads = config.n_heads
        self.feature_map = config.feature_map
        self.pre_norm = config.norm == "pre"
        self.gelu = config.activation == "gelu"
        self.query = nn.Linear(D, D)
        self.key = nn.Linear(D, D)
        self.value = nn.Linear(D, D)
        self.out = nn.Linear(D, D)
        self.linear1 = nn.Linear(D, config.d_ff)
        self.linear2 = nn.Linear(config.d_ff, D)
        self.norm1 = nn.LayerNorm(D, eps=1e-5)
        self.norm2 = nn.LayerNorm(D, eps=1e-5)

    def _qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads = (*x.shape[:-1], self.n_heads, -1)
        q, k, v = self.query(x).view(heads), self.key(x).view(heads), self.value(x).view(heads)
        return q, k, v

    def _feed_forward(self, x: Tensor) -> Tensor:
        hidden = self.linear1(x)
        hidden = F.gelu(hidden) if self.gelu else F.relu(hidden)
        y: Tensor = self.linear2(hidden)
        return y

    def _combine(self, x: Tensor, attended: Tensor) -> Tensor:
        if self.pre_norm:
            x = x + attended
            return x + self._feed_forward(self.norm2(x))
        x = self.norm1(x + attended)
        y: Tensor = self.norm2(x + self._feed_forward(x))
        return y

    def forward(
        self, x: Tensor, keep: Tensor | None = None, state: AttentionState | None = None
    ) -> tuple[Tensor, AttentionState]:
        """Run all positions at once: ``x: [B, S, D]`` → the same, and the final state.

        Positions where ``keep: bool [B, S]`` is false leave nothing in the state.
        """
        q, k, v = self._qkv(self.norm1(x) if self.pre_norm else x)
        if keep is not None:
            k = k.masked_fill(~keep[..., None, None], -math.inf)  # whose features are 0
        attended, final_state = linear_attention(q, k, v, state, feature_map=self.feature_map)
        return self._combine(x, self.out(attended.flatten(2))), final_state

    def step(self, x: Tensor, state: AttentionState) -> tuple[Tensor, AttentionState]:
        """Run one position: ``x: [B, D]`` → the same, and the new state (eq. 18-20)."""
        q, k, v = self._qkv(self.norm1(x) if self.pre_norm else x)
        q, k = elu_feature_map(q), elu_feature_map(k)
        attended, state = linear_attention_step(q, k, v, state)
        return self._combine(x, self.out(attended.flatten(1))), state


class LinearTransformer(nn.Module):
    """A causal linear transformer over the values of an image (Katharopoulos et al. 2020).

    ``forward``, ``prefill`` and ``step`` are the same mathematics: all steps in parallel, all in
    parallel keeping only the state, and one at a time. Canvases are ``uint8 [B, T, C]``; labels
    ``int64 [B]``, ``len(classes)`` standing for "no label", or None for no label at all.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        previous = config.input == "previous"
        self.input = PreviousInput(config) if previous else NeighbourhoodInput(config)
        self.positions = Positions(config) if config.positions == "learned" else None
        self.label_embedding: nn.Embedding | None = None
        if config.classes:
            self.label_embedding = nn.Embedding(len(config.classes) + 1, config.d_model)
            nn.init.normal_(self.label_embedding.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.norm = nn.LayerNorm(config.d_model, eps=1e-5)
        self.head = Head(config)

    def embed(self, canvas: Tensor, steps: Tensor, labels: Tensor | None) -> Tensor:
        """Give the first layer's input at these steps: ``steps: int64 [B, S]`` → ``[B, S, D]``."""
        x: Tensor = self.input(canvas, steps)
        if self.positions is not None:
            x = x + self.positions(steps)
        if self.label_embedding is not None:
            if labels is None:
                labels = torch.full_like(steps[:, 0], len(self.config.classes))
            x = x + self.label_embedding(labels).unsqueeze(1)
        elif labels is not None:
            raise ValueError("this network was trained without classes and takes no labels")
        return x

    def _run(
        self, canvas: Tensor, labels: Tensor | None, count: int, lengths: Tensor | None
    ) -> tuple[Tensor, list[AttentionState]]:
        # A network whose first value is given has no step 0: its sums begin at step 1.
        first = int(self.config.start == "given")
        steps = torch.arange(first, count, device=canvas.device).expand(canvas.shape[0], -1)
        keep = None if lengths is None else steps < lengths.unsqueeze(1)
        x = self.embed(canvas, steps, labels)
        states: list[AttentionState] = []
        for block in self.blocks:
            x, state = block(x, keep)
            states.append(state)
        return x, states

    def forward(self, canvas: Tensor, labels: Tensor | None = None) -> Tensor:
        """Give the head's parameters at every step: ``[B, steps, head_outputs]``.

        A network whose first value is given has no step 0, and so one row fewer.
        """
        x, _ = self._run(canvas, labels, self.config.steps, None)
        parameters: Tensor = self.head(self.norm(x))
        return parameters

    def bits(self, canvas: Tensor, labels: Tensor | None = None) -> Tensor:
        """Give the exact cost of each pixel in bits, float32 ``[B, T]``, under the model."""
        return self.bits_from(self(canvas, labels), canvas)

    def bits_from(self, parameters: Tensor, canvas: Tensor) -> Tensor:
        """Give each pixel's bits from what ``forward`` returned for the canvas: ``[B, T]``."""
        B, T, _ = canvas.shape
        given = int(self.config.start == "given")
        values = canvas.reshape(B, -1, self.config.step_channels)[:, given:]
        bits = self.head.bits(parameters, values)
        return F.pad(bits, (given, 0)).view(B, T, -1).sum(-1)

    def prefill(
        self, canvas: Tensor, lengths: Tensor, labels: Tensor | None = None
    ) -> tuple[State, Tensor]:
        """Absorb the first ``lengths`` pixels of each canvas in one parallel pass.

        ``canvas: uint8 [B, T, C]``, ``lengths: int64 [B]`` in pixels. Returns the state after
        them, and their bits, float32 ``[B, T]``, zero past the length.
        """
        config = self.config
        count = int(lengths.max()) * config.steps_per_pixel
        if count <= (config.start == "given"):  # no step to run, and no sums yet
            sums = torch.promote_types(self.norm.weight.dtype, torch.float32)
            kv, z = (x.to(canvas.device) for x in State.zeros(config, len(canvas), sums))
            return State(kv, z), kv.new_zeros(canvas.shape[:2])
        x, states = self._run(canvas, labels, count, lengths * config.steps_per_pixel)
        state = State(torch.stack([s.kv for s in states]), torch.stack([s.z for s in states]))
        pixels = count // config.steps_per_pixel
        bits = self.bits_from(self.head(self.norm(x)), canvas[:, :pixels])
        bits = F.pad(bits, (0, config.pixels - pixels))
        known = torch.arange(config.pixels, device=canvas.device) < lengths.unsqueeze(1)
        return state, bits * known

    def step(
        self, canvas: Tensor, steps: Tensor, state: State, labels: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Run one step of each row from what its canvas holds before it.

        ``canvas: uint8 [B, T, C]``, ``steps: int64 [B]``. Returns the head's parameters
        ``[B, head_outputs]`` and the state after the step.
        """
        x = self.embed(canvas, steps.unsqueeze(1), labels).squeeze(1)
        kv: list[Tensor] = []
        z: list[Tensor] = []
        for layer, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            x, after = block.step(x, AttentionState(state.kv[layer], state.z[layer]))
            kv.append(after.kv)
            z.append(after.z)
        return self.head(self.norm(x)), State(torch.stack(kv), torch.stack(z))
