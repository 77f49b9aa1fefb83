"""Linear maps with weight gradients in C++ (weight_gradient.h), as torch operators."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from scanline.kernels.custom_op import custom_op
from scanline.kernels.native.training.library import require_library


@custom_op("scanline::linear")
def linear(x: Tensor, weight: Tensor) -> Tensor:
    """Return W x in the dtype of ``x: [..., I]``; ``weight: [O, I]`` is float32."""
    return F.linear(x, weight.to(x.dtype))


@custom_op("scanline::weight_gradient")
def weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """Return gradᵀ x in float32: ``grad: [N, O]``, ``x: [N, I]`` → ``[O, I]``.

    Both are float32 or both bfloat16.
    """
    grad, x = grad.contiguous(), x.contiguous()
    weight = x.new_zeros(grad.shape[1], x.shape[1], dtype=torch.float32)
    bf16 = x.dtype == torch.bfloat16
    require_library().run("weight_gradient", len(x), *weight.shape, bf16, grad, x, weight)
    return weight


def _setup_linear(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate_linear(ctx: Any, grad: Tensor) -> Any:
    x, weight = ctx.saved_tensors
    return grad @ weight.to(grad.dtype), weight_gradient(grad.flatten(0, -2), x.flatten(0, -2))


linear.register_autograd(_differentiate_linear, setup_context=_setup_linear)


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return y


@custom_op("scanline::onednn_linear")
def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return W x + b by oneDNN in float32: ``x: [N, I]``, ``weight: [O, I]``, ``bias: [O]``."""
    return _onednn(x, weight, bias)


@custom_op("scanline::onednn_linear_backward")
def _onednn_linear_backward(
    grad: Tensor, x: Tensor, weight: Tensor, needs_grad_x: bool
) -> tuple[Tensor, Tensor, Tensor]:
    grad_x = _onednn(grad, weight.T, None) if needs_grad_x else x.new_empty(0)
    return grad_x, weight_gradient(grad, x), grad.sum(0)


def _setup_onednn_linear(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])


def _differentiate_onednn_linear(ctx: Any, grad: Tensor) -> Any:
    needs_grad_x = ctx.needs_input_grad[0]
    grad_x, *rest = _onednn_linear_backward(grad, *ctx.saved_tensors, needs_grad_x)
    return grad_x if needs_grad_x else None, *rest


onednn_linear.register_autograd(_differentiate_onednn_linear, setup_context=_setup_onednn_linear)
