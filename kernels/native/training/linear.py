"""Linear maps whose weights have their gradients from C++ (weight_gradient.h): torch operators."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from scanline.kernels.custom_op import custom_op
from scanline.kernels.native.training.library import require_library


@custom_op("scanline::linear")
def linear(x: Tensor, weight: Tensor) -> Tensor:
    """Give W x in the dtype of ``x: [..., I]``; ``weight: [O, I]`` is float32."""
    return F.linear(x, weight.to(x.dtype))


@custom_op("scanline::weight_gradient")
def weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """Sum gradᵀ x over all rows, in float32: ``grad: [N, O]``, ``x: [N, I]`` → ``[O, I]``.

    Both are float32 or both bfloat16.
    """
    grad, x = grad.contiguous(), x.contiguous()
    weight = x.new_zeros(grad.shape[1], x.shape[1], dtype=torch.float32)
    bf16 = x.dtype == torch.bfloat16
    require_library().run("weight_gradient", len(x), *weight.shape, bf16, grad, x, weight)
    return weight


@weight_gradient.register_fake
def _(grad: Tensor, x: Tensor) -> Any:
    return x.new_empty(grad.shape[1], x.shape[1], dtype=torch.float32)


@linear.register_fake
def _(x: Tensor, weight: Tensor) -> Any:
    return x.new_empty(*x.shape[:-1], len(weight))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _grad(ctx: Any, grad: Tensor) -> Any:
    x, weight = ctx.saved_tensors
    return grad @ weight.to(grad.dtype), weight_gradient(grad.flatten(0, -2), x.flatten(0, -2))


linear.register_autograd(_grad, setup_context=_keep)
