"""Negative log-likelihood of values under a head's parameters, in nats."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from scanline.kernels.native.training import nll as native


def categorical_nll(logits: Tensor, values: Tensor) -> Tensor:
    """Return -ln softmax(logits)[value] of ``logits: [P, 256]`` and integer ``values: [P]``."""
    if native.supports_nll(logits):
        return native.categorical_nll(logits, values.to(torch.uint8))
    return F.cross_entropy(logits, values.long(), reduction="none")


def mixture_nll(
    parameters: Tensor, values: Tensor, definition: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Return -ln P of values under mixtures of discretised logistics.

    Args:
        parameters: Parameters of the head ``[..., size]``.
        values: Values ``[..., C]``, integers from 0 to 255.
        definition: PyTorch implementation with the same two arguments, used if there is none
            in C++.

    Returns:
        Nats ``[...]``.
    """
    if not native.supports_nll(parameters):
        return definition(parameters, values)
    flat = parameters.flatten(0, -2), values.to(torch.uint8).flatten(0, -2)
    return native.mixture_nll(*flat).view(values.shape[:-1])
