"""Targets of the attention tests (the interpreter or a GPU), and random inputs for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
import torch
from torch import Tensor


class Target(NamedTuple):
    """Device and dtype of a test's inputs."""

    device: str
    dtype: torch.dtype


TARGETS = [
    pytest.param(Target("cpu", torch.float32), id="interpreter-float32"),
    pytest.param(Target("cuda", torch.float32), id="cuda-float32", marks=pytest.mark.gpu),
    pytest.param(Target("cuda", torch.bfloat16), id="cuda-bfloat16", marks=pytest.mark.gpu),
]


def inputs(
    target: Target, T: int, B: int = 2, H: int = 2, K: int = 16, V: int = 16
) -> tuple[Tensor, Tensor, Tensor]:
    """Return random q, k and v, before the feature map."""
    generator = torch.Generator().manual_seed(T)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    q, k, v = (normal(B, T, H, X).to(target.device, target.dtype) for X in (K, K, V))
    return q, k, v


def leaves(tensors: Sequence[Tensor], dtype: torch.dtype | None = None) -> list[Tensor]:
    """Return copies of the tensors that require gradients."""
    return [x.detach().clone().to(dtype or x.dtype).requires_grad_() for x in tensors]
