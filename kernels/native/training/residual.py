"""Residual addition, norm, convolution and GELU in C++ (residual.h, activation.h)."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from scanline.kernels.double_backward import refuse_double_backward
from scanline.kernels.native.training.library import require_library
from scanline.kernels.short_conv import TAPS

_POSITIONS = 32  # positions per unit of work without a convolution
_ROWS = 64  # rows per unit of work of GELU


class _Sizes(ctypes.Structure):
    """``ResidualSizes`` in residual.h."""

    _fields_ = [
        *[(name, ctypes.c_int64) for name in ["images", "positions", "features"]],
        *[(name, ctypes.c_int64) for name in ["columns", "convolved"]],
        ("epsilon", ctypes.c_float),
    ]


def _contiguous(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def _sizes(x: Tensor, conv_weight: Tensor | None, columns: int, eps: float) -> Any:
    convolved = conv_weight is not None
    return ctypes.byref(_Sizes(*x.shape, columns if convolved else _POSITIONS, convolved, eps))


class _Residual(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, added: Tensor | None, bias: Tensor | None, norm_weight: Tensor,
        norm_bias: Tensor, conv_weight: Tensor | None, columns: int, eps: float,
        bf16: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        dtype = torch.bfloat16 if bf16 else torch.float32
        ctx.added, ctx.dtype = None if added is None else added.dtype, dtype
        ctx.sizes = columns, eps
        x, added = x.contiguous(), None if added is None else added.to(dtype).contiguous()
        bias, conv_weight = _contiguous(bias), _contiguous(conv_weight)
        norm_weight, norm_bias = norm_weight.contiguous(), norm_bias.contiguous()
        total = x.new_empty(0) if added is None else torch.empty_like(x)
        y = torch.empty_like(x, dtype=dtype)
        require_library().run(
            "residual_forward", _sizes(x, conv_weight, columns, eps), bf16,
            x, added, bias, norm_weight, norm_bias, conv_weight, total, y,
        )  # fmt: skip
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x if added is None else total, norm_weight, norm_bias, conv_weight)
        return total, y

    @staticmethod
    @refuse_double_backward
    def backward(ctx: Any, grad_sum: Tensor | None, grad_y: Tensor | None) -> Any:
        total, norm_weight, norm_bias, conv_weight = ctx.saved_tensors
        added, bf16 = ctx.added is not None, ctx.dtype == torch.bfloat16
        if grad_y is None:
            grad_y = torch.zeros_like(total, dtype=ctx.dtype)
        grad_y, grad_sum = grad_y.contiguous(), _contiguous(grad_sum) if added else None
        grad = torch.empty_like(total)
        grad_added = torch.empty_like(grad_y) if added and bf16 else None
        parameter_grads = total.new_zeros(len(total), 3 + TAPS, total.shape[-1])
        require_library().run(
            "residual_backward", _sizes(total, conv_weight, *ctx.sizes), bf16, grad_sum, grad_y,
            total, norm_weight, norm_bias, conv_weight, grad, grad_added, parameter_grads,
        )  # fmt: skip
        parameter_grads = parameter_grads.sum(0)
        grad_bias, grad_norm_weight, grad_norm_bias, *_ = parameter_grads
        grad_conv = None if conv_weight is None else parameter_grads[3:]
        if added:  # computed separately only in bfloat16
            grad_added = (grad if grad_added is None else grad_added).to(ctx.added)
        return (
            grad, grad_added, grad_bias if added else None, grad_norm_weight, grad_norm_bias,
            grad_conv, None, None, None,
        )  # fmt: skip


def residual(
    x: Tensor, added: Tensor | None, bias: Tensor | None, norm_weight: Tensor,
    norm_bias: Tensor, conv_weight: Tensor | None, columns: int, eps: float, bf16: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Add to the residual stream, normalise the sum and convolve the result.

    Args:
        x: Residual stream, float32 ``[B, T, D]``, where D is a multiple of the vector size.
        added: Tensor to add, like ``x``; or None.
        bias: Bias ``[D]`` to add; None if ``added`` is None.
        norm_weight: Weight ``[D]`` of the layer norm.
        norm_bias: Bias ``[D]`` of the layer norm.
        conv_weight: Weight ``[5, D]`` of the convolution; or None.
        columns: Pixels per image row.
        eps: ε of the layer norm.
        bf16: Return the second result in bfloat16, otherwise in float32.

    Returns:
        The sum, which is empty if nothing was added, and the convolved norm.
    """
    total, y = _Residual.apply(
        x, added, bias, norm_weight, norm_bias, conv_weight, columns, eps, bf16
    )
    return total, y


class _BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        x, bias = x.contiguous(), bias.contiguous()
        y = torch.empty_like(x)
        require_library().run("bias_gelu_forward", *_rows(x), x, bias, y)
        ctx.save_for_backward(x, bias)
        return y

    @staticmethod
    @refuse_double_backward
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, bias = ctx.saved_tensors
        grad = grad.contiguous()
        grad_x = torch.empty_like(x)
        rows, features, *rest = _rows(x)
        block_grads = bias.new_zeros(-(-rows // _ROWS), features)
        require_library().run(
            "bias_gelu_backward", rows, features, *rest, grad, x, bias, grad_x, block_grads
        )
        return grad_x, block_grads.sum(0)


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """Return GELU(x + bias): ``x: [..., F]`` float32 or bfloat16, ``bias: [F]`` float32.

    F must be a multiple of the vector size.
    """
    y: Tensor = _BiasGelu.apply(x, bias)
    return y


def _rows(x: Tensor) -> tuple[int, int, int, bool]:
    features = x.shape[-1]
    return x.numel() // features, features, _ROWS, x.dtype == torch.bfloat16
