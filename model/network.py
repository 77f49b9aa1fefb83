"""The transformer over image values, with parallel and recurrent evaluation."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scanline.kernels.ops.linear import LinearOutput
from scanline.kernels.ops.residual import residual
from scanline.model.config import NO_LABEL, ModelConfig
from scanline.model.heads import Head
from scanline.model.inputs import NeighbourhoodInput, Positions, PreviousInput
from scanline.model.layers.base import State
from scanline.model.layers.block import Block


class LinearTransformer(nn.Module):
    """Causal linear transformer over the values of an image (Katharopoulos et al. 2020).

    ``forward`` computes all steps in parallel, ``prefill`` does too but returns only the state and
    the bits, and ``step`` computes one step from the state. All three give the same results. A
    network without a state (``ModelConfig.has_state``) has ``recompute_step`` instead of the last
    two.

    Canvases are uint8 ``[B, T, C]``. Labels are int64 ``[B]``, -1 for none, or None for a batch
    without labels. A state is a list with one dictionary of tensors per layer, one row per image.
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
        """Return the input of the first layer: ``steps: int64 [B, S]`` → ``[B, S, D]``."""
        x: Tensor = self.input(canvas, steps)
        if self.positions is not None:
            x = x + self.positions(steps)
        if self.label_embedding is not None:
            unconditional = len(self.config.classes)
            if labels is None:
                labels = steps.new_full((len(steps),), NO_LABEL)
            labels = labels.masked_fill(labels == NO_LABEL, unconditional)
            x = x + self.label_embedding(labels).unsqueeze(1)
        elif labels is not None and bool((labels != NO_LABEL).any()):
            raise ValueError("this network was trained without classes and takes no labels")
        return x

    def _layers(self) -> list[Block]:
        return [cast(Block, block) for block in self.blocks]

    def _steps(self, canvas: Tensor, count: int) -> Tensor:
        """Return the modelled steps below ``count``, for each row: ``[B, S]``."""
        # If the first value is given, step 0 is not modelled and the sums start at step 1.
        return torch.arange(self.first_step, count, device=canvas.device).expand(len(canvas), -1)

    @property
    def first_step(self) -> int:
        """The first step that the network models."""
        return int(self.config.start == "given")

    def initial_state(self, rows: int) -> list[State]:
        """Return the state of ``rows`` images before their first step."""
        return [block.initial_state(rows) for block in self._layers()]

    def forward(self, canvas: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the head's parameters at every step: ``[B, steps, head_outputs]``.

        If the first value is given, step 0 is not modelled and there is one step fewer.
        """
        x = self.embed(canvas, self._steps(canvas, self.config.steps), labels)
        added: LinearOutput | None = None
        for block in self._layers():
            x, added = block.forward_deferred(x, added)
        affine = (self.norm.weight, self.norm.bias)
        # In full precision, like the head.
        _, y = residual(x, added, affine, eps=self.norm.eps, full_precision=True)
        parameters: Tensor = self.head(y)
        return parameters

    def bits(self, canvas: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the exact cost of each pixel in bits under the model: float32 ``[B, T]``."""
        return self.bits_from(self(canvas, labels), canvas)

    def bits_from(self, parameters: Tensor, canvas: Tensor) -> Tensor:
        """Return the bits of each pixel from the output of ``forward``: ``[B, T]``."""
        B, T, _ = canvas.shape
        given = self.first_step
        values = canvas.reshape(B, -1, self.config.step_channels)[:, given:]
        bits = self.head.bits(parameters, values)
        return F.pad(bits, (given, 0)).view(B, T, -1).sum(-1)

    def prefill(
        self, canvas: Tensor, lengths: Tensor, labels: Tensor | None = None
    ) -> tuple[list[State], Tensor]:
        """Prefill the first ``lengths`` pixels of each canvas in one parallel pass.

        ``lengths: int64 [B]`` is in pixels. Returns the state after them, and the bits of the
        pixels, float32 ``[B, T]``, zero from ``lengths`` on.
        """
        config = self.config
        count = int(lengths.max()) * config.steps_per_pixel
        if count <= self.first_step:  # no step to run
            return self.initial_state(len(canvas)), torch.zeros(
                canvas.shape[:2], device=canvas.device
            )
        x = self.embed(canvas, self._steps(canvas, count), labels)
        modelled = (lengths * config.steps_per_pixel - self.first_step).clamp(min=0)
        states: list[State] = []
        for block in self._layers():
            x, state = block.prefill(x, modelled)
            states.append(state)
        pixels = count // config.steps_per_pixel
        bits = self.bits_from(self.head(self.norm(x)), canvas[:, :pixels])
        bits = F.pad(bits, (0, config.pixels - pixels))
        known = torch.arange(config.pixels, device=canvas.device) < lengths.unsqueeze(1)
        return states, bits * known

    def step(
        self, canvas: Tensor, steps: Tensor, states: list[State], labels: Tensor | None = None
    ) -> Tensor:
        """Run one step of each row and update ``states`` in place.

        ``steps: int64 [B]`` is the step of each row; only earlier values of ``canvas`` are read.
        Returns the head's parameters ``[B, head_outputs]``.
        """
        x = self.embed(canvas, steps.unsqueeze(1), labels).squeeze(1)
        for block, state in zip(self._layers(), states, strict=True):
            x = block.step(x, state, steps - self.first_step)
        parameters: Tensor = self.head(self.norm(x))
        return parameters

    def recompute_step(self, canvas: Tensor, step: int, labels: Tensor | None = None) -> Tensor:
        """Return the head's parameters ``[B, head_outputs]`` at a step, without a state.

        Runs all steps up to this one, so an image takes time quadratic in its steps or more. It
        reads only earlier values of ``canvas``, also with attention whose outputs depend on later
        positions, because there are none.
        """
        x = self.embed(canvas, self._steps(canvas, step + 1), labels)
        for block in self._layers():
            x = block(x)
        parameters: Tensor = self.head(self.norm(x[:, -1]))
        return parameters
