"""Linear maps with weight gradients in C++ (weight_gradient.h)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from scanline.kernels.double_backward import refuse_double_backward
from scanline.kernels.native.training.library import require_library


def weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """Return gradᵀ x in float32: ``grad: [N, O]``, ``x: [N, I]`` → ``[O, I]``.

    Both are float32 or both bfloat16.
    """
    grad, x = grad.contiguous(), x.contiguous()
    weight = x.new_zeros(grad.shape[1], x.shape[1], dtype=torch.float32)
    bf16 = x.dtype == torch.bfloat16
    require_library().run("weight_gradient", len(x), *weight.shape, bf16, grad, x, weight)
    return weight


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight.to(x.dtype))

    @staticmethod
    @refuse_double_backward
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return grad @ weight.to(grad.dtype), weight_gradient(grad.flatten(0, -2), x.flatten(0, -2))


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """Return W x in the dtype of ``x: [..., I]``; ``weight: [O, I]`` is float32."""
    y: Tensor = _Linear.apply(x, weight)
    return y


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return y


class _OnednnLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _onednn(x, weight, bias)

    @staticmethod
    @refuse_double_backward
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        grad_x = _onednn(grad, weight.T, None) if ctx.needs_input_grad[0] else None
        return grad_x, weight_gradient(grad, x), grad.sum(0)


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return W x + b by oneDNN in float32: ``x: [N, I]``, ``weight: [O, I]``, ``bias: [O]``."""
    y: Tensor = _OnednnLinear.apply(x, weight, bias)
    return y
