"""Negative log-likelihood under a head's parameters and its gradient in C++, as torch operators."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scanline.kernels.custom_op import custom_op
from scanline.kernels.native.training.library import is_available, require_library

_BLOCK = 64  # pixels per unit of work of a thread


def supports_nll(parameters: Tensor) -> bool:
    """Return True if these operators support the parameters."""
    on_cpu = parameters.device.type == "cpu" and parameters.dtype == torch.float32
    return on_cpu and is_available()


@custom_op("scanline::mixture_nll")
def mixture_nll(parameters: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return -ln P of values under mixtures of ten logistics, and its gradient.

    Args:
        parameters: float32 ``[P, size]``.
        values: uint8 ``[P, C]``.

    Returns:
        Nats ``[P]``, and their gradient with respect to the parameters ``[P, size]``.
    """
    parameters, values = parameters.contiguous(), values.contiguous()
    nats, gradient = parameters.new_empty(len(parameters)), torch.empty_like(parameters)
    sizes = len(parameters), _BLOCK, values.shape[1], parameters.shape[1]
    require_library().run("mixture_nll", *sizes, parameters, values, nats, gradient)
    return nats, gradient


@custom_op("scanline::categorical_nll")
def categorical_nll(logits: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return -ln softmax(logits)[value].

    Args:
        logits: float32 ``[P, 256]``.
        values: uint8 ``[P]``.

    Returns:
        Nats ``[P]``, and for the backward pass the maximum logit and the sum of
        e^(logit - maximum), ``[P, 2]``.
    """
    logits, values = logits.contiguous(), values.contiguous()
    nats, sums = logits.new_empty(len(logits)), logits.new_empty(len(logits), 2)
    require_library().run("categorical_forward", len(logits), _BLOCK, logits, values, nats, sums)
    return nats, sums


@custom_op("scanline::categorical_backward")
def _categorical_backward(grad: Tensor, logits: Tensor, values: Tensor, sums: Tensor) -> Tensor:
    grad, logits, values = grad.contiguous(), logits.contiguous(), values.contiguous()
    gradient = torch.empty_like(logits)
    count = len(logits)
    require_library().run(
        "categorical_backward", count, _BLOCK, grad, logits, values, sums, gradient
    )
    return gradient


def _setup_mixture(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)  # the second output is never differentiated
    ctx.save_for_backward(output[1])


def _differentiate_mixture(ctx: Any, grad: Tensor, _gradient: None) -> Any:
    (gradient,) = ctx.saved_tensors
    return gradient * grad.unsqueeze(1), None


def _setup_categorical(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)  # the second output is never differentiated
    ctx.save_for_backward(*inputs, output[1])


def _differentiate_categorical(ctx: Any, grad: Tensor, _sums: None) -> Any:
    return _categorical_backward(grad, *ctx.saved_tensors), None


mixture_nll.register_autograd(_differentiate_mixture, setup_context=_setup_mixture)
categorical_nll.register_autograd(_differentiate_categorical, setup_context=_setup_categorical)
