"""Base class of the layers, and their recurrent state."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

# The recurrent state of a layer: named tensors with one row per slot. Decoders reset and copy rows
# without knowing what the tensors mean.
State = dict[str, Tensor]


class Layer(nn.Module, ABC):
    """Causal layer ``[B, S, D]`` → ``[B, S, D]`` with parallel and recurrent evaluation.

    ``forward`` computes all steps of an image in parallel (training). ``prefill`` does too, and
    returns the state after each row's known steps. ``step`` computes one step of each row from the
    state. Tests check that the three agree.
    """

    @abstractmethod
    def initial_state(self, rows: int) -> State:
        """Return the state of ``rows`` images before their first step."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Compute all steps from the first on."""

    @abstractmethod
    def prefill(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, State]:
        """Compute the first S steps; also return the state of each row after ``lengths`` steps.

        ``lengths: int64 [B]``, at most S.
        """

    @abstractmethod
    def step(self, x: Tensor, state: State, steps: Tensor) -> Tensor:
        """Compute one step of each row, ``[B, D]`` → ``[B, D]``; update the state in place.

        ``steps: int64 [B]`` counts from the first step that the network models.
        """

    def zeros(self, rows: int, *shape: int) -> Tensor:
        """Return zeros ``[rows, *shape]`` for a state: float32, or float64 for a float64 layer.

        A state is never narrower than float32, because the sums of linear attention grow
        over the whole image.
        """
        like = next(self.parameters())
        dtype = torch.promote_types(like.dtype, torch.float32)
        return like.new_zeros(rows, *shape, dtype=dtype)
