"""What values cost under a head's parameters, and the gradient of that, in C++, as operators."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scanline.kernels.custom_op import custom_op
from scanline.kernels.native.training.library import is_available, require_library

_PIECE = 64  # pixels that a thread takes at a time


def supports_nll(parameters: Tensor) -> bool:
    """Whether the operators here take these parameters."""
    cpu = parameters.device.type == "cpu" and parameters.dtype == torch.float32
    return cpu and is_available()


@custom_op("scanline::mixture_nll")
def mixture_nll(parameters: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Give -ln P of the values under mixtures of ten logistics, and its gradient.

    ``parameters: [P, size]`` float32, ``values: [P, C]`` uint8. Returns nats ``[P]`` and their
    derivatives by the parameters, ``[P, size]``.
    """
    parameters, values = parameters.contiguous(), values.contiguous()
    nats, gradient = parameters.new_empty(len(parameters)), torch.empty_like(parameters)
    sizes = len(parameters), _PIECE, values.shape[1], parameters.shape[1]
    require_library().run("mixture_nll", *sizes, parameters, values, nats, gradient)
    return nats, gradient


@custom_op("scanline::categorical_nll")
def categorical_nll(logits: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Give -ln softmax(logits)[value]: ``logits: [P, 256]`` float32, ``values: [P]`` uint8.

    Returns nats ``[P]``, and for the way back the largest logit and the sum of e^(logit - largest),
    ``[P, 2]``.
    """
    logits, values = logits.contiguous(), values.contiguous()
    nats, sums = logits.new_empty(len(logits)), logits.new_empty(len(logits), 2)
    require_library().run("categorical_forward", len(logits), _PIECE, logits, values, nats, sums)
    return nats, sums


@custom_op("scanline::categorical_backward")
def _categorical_backward(grad: Tensor, logits: Tensor, values: Tensor, sums: Tensor) -> Tensor:
    grad, logits, values = grad.contiguous(), logits.contiguous(), values.contiguous()
    gradient = torch.empty_like(logits)
    count = len(logits)
    require_library().run(
        "categorical_backward", count, _PIECE, grad, logits, values, sums, gradient
    )
    return gradient


# What torch.compile needs to know of each, and the way back.


@mixture_nll.register_fake
def _(parameters: Tensor, values: Tensor) -> Any:
    return parameters.new_empty(len(parameters)), parameters.new_empty(parameters.shape)


@categorical_nll.register_fake
def _(logits: Tensor, values: Tensor) -> Any:
    return logits.new_empty(len(logits)), logits.new_empty(len(logits), 2)


@_categorical_backward.register_fake
def _(grad: Tensor, logits: Tensor, values: Tensor, sums: Tensor) -> Any:
    return logits.new_empty(logits.shape)


def _keep_gradient(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)  # nobody asks for the gradient's own
    ctx.save_for_backward(output[1])


def _mixture_grad(ctx: Any, grad: Tensor, _gradient: None) -> Any:
    (gradient,) = ctx.saved_tensors
    return gradient * grad.unsqueeze(1), None


def _keep_logits(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)  # nobody asks for the sums'
    ctx.save_for_backward(*inputs, output[1])


def _categorical_grad(ctx: Any, grad: Tensor, _sums: None) -> Any:
    return _categorical_backward(grad, *ctx.saved_tensors), None


mixture_nll.register_autograd(_mixture_grad, setup_context=_keep_gradient)
categorical_nll.register_autograd(_categorical_grad, setup_context=_keep_logits)
