"""Negative log-likelihood under a head's parameters and its gradient in C++."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scanline.kernels.double_backward import refuse_double_backward
from scanline.kernels.native.training.library import is_available, require_library

_BLOCK = 64  # pixels per unit of work of a thread


def supports_nll(parameters: Tensor) -> bool:
    """Return True if these functions support the parameters."""
    on_cpu = parameters.device.type == "cpu" and parameters.dtype == torch.float32
    return on_cpu and is_available()


class _Mixture(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parameters: Tensor, values: Tensor) -> Tensor:
        parameters, values = parameters.contiguous(), values.contiguous()
        nats, gradient = parameters.new_empty(len(parameters)), torch.empty_like(parameters)
        sizes = len(parameters), _BLOCK, values.shape[1], parameters.shape[1]
        require_library().run("mixture_nll", *sizes, parameters, values, nats, gradient)
        ctx.save_for_backward(gradient)
        return nats

    @staticmethod
    @refuse_double_backward
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * grad.unsqueeze(1), None


def mixture_nll(parameters: Tensor, values: Tensor) -> Tensor:
    """Return -ln P ``[P]`` of values under mixtures of ten logistics.

    Args:
        parameters: float32 ``[P, size]``.
        values: uint8 ``[P, C]``.
    """
    nats: Tensor = _Mixture.apply(parameters, values)
    return nats


class _Categorical(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, values: Tensor) -> Tensor:
        logits, values = logits.contiguous(), values.contiguous()
        # For the backward pass: the maximum logit and the sum of e^(logit - maximum).
        nats, sums = logits.new_empty(len(logits)), logits.new_empty(len(logits), 2)
        require_library().run(
            "categorical_forward", len(logits), _BLOCK, logits, values, nats, sums
        )
        ctx.save_for_backward(logits, values, sums)
        return nats

    @staticmethod
    @refuse_double_backward
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        logits, values, sums = ctx.saved_tensors
        grad, gradient = grad.contiguous(), torch.empty_like(logits)
        require_library().run(
            "categorical_backward", len(logits), _BLOCK, grad, logits, values, sums, gradient
        )
        return gradient, None


def categorical_nll(logits: Tensor, values: Tensor) -> Tensor:
    """Return -ln softmax(logits)[value] ``[P]`` of float32 ``logits: [P, 256]``, uint8 ``[P]``."""
    nats: Tensor = _Categorical.apply(logits, values)
    return nats
