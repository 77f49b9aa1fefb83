"""What every layer is: three views of one map over positions, and the state that it carries."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

# What a layer carries from step to step: named tensors with a row a slot. Whoever holds states
# resets, copies and forks rows of them without knowing what they mean.
State = dict[str, Tensor]


class Layer(nn.Module, ABC):
    """A causal map of features, ``[B, S, D]`` → ``[B, S, D]``, in three views proved equal by test.

    ``forward`` takes all steps of an image at once (training), ``prefill`` the same and keeps the
    state after each row's known steps, ``step`` one step of each row.
    """

    @abstractmethod
    def initial_state(self, rows: int) -> State:
        """Give the state of ``rows`` images before their first step."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Map all steps, from the first on: ``[B, S, D]`` → the same."""

    @abstractmethod
    def prefill(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, State]:
        """Map the first steps as ``forward`` does, and give each row's state after its ``lengths``.

        ``lengths: int64 [B]``, none above S.
        """

    @abstractmethod
    def step(self, x: Tensor, state: State, steps: Tensor) -> Tensor:
        """Map one step of each row, ``x: [B, D]`` → the same, and move the state on in place.

        ``steps: int64 [B]`` count from the first step that the network models.
        """

    def zeros(self, rows: int, *shape: int) -> Tensor:
        """Give zeros ``[rows, *shape]`` for a state: float32, or float64 for a float64 layer.

        With no decay the sums of a linear attention grow for the whole image, so no state is
        narrower than float32.
        """
        like = next(self.parameters())
        dtype = torch.promote_types(like.dtype, torch.float32)
        return like.new_zeros(rows, *shape, dtype=dtype)
