"""Residual addition, norm, convolution and GELU in C++ (residual.h, activation.h)."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from scanline.kernels.custom_op import custom_op
from scanline.kernels.native.training.library import require_library
from scanline.kernels.short_conv import TAPS

_POSITIONS = 32  # positions per unit of work without a convolution
_ROWS = 64  # rows per unit of work of GELU


class _Sizes(ctypes.Structure):
    """``ResidualSizes`` in residual.h."""

    _fields_ = [
        *[(name, ctypes.c_int64) for name in ["images", "positions", "features"]],
        *[(name, ctypes.c_int64) for name in ["columns", "stride", "convolved"]],
        ("epsilon", ctypes.c_float),
    ]


def _contiguous(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def _sizes(x: Tensor, conv_weight: Tensor | None, columns: int, stride: int, eps: float) -> Any:
    convolved = conv_weight is not None
    return ctypes.byref(
        _Sizes(*x.shape, columns if convolved else _POSITIONS, stride, convolved, eps)
    )


@custom_op("scanline::residual")
def residual(
    x: Tensor, added: Tensor | None, bias: Tensor | None, norm_weight: Tensor,
    norm_bias: Tensor, conv_weight: Tensor | None, columns: int, stride: int, eps: float,
    bf16: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Add to the residual stream, normalise the sum and convolve the result.

    Args:
        x: Residual stream, float32 ``[B, T, D]``, where D is a multiple of the vector size.
        added: Tensor to add, like ``x``; or None.
        bias: Bias ``[D]`` to add; None if ``added`` is None.
        norm_weight: Weight ``[D]`` of the layer norm.
        norm_bias: Bias ``[D]`` of the layer norm.
        conv_weight: Weight ``[5, D]`` of the convolution; or None.
        columns: Number of steps per image row.
        stride: Number of steps per pixel.
        eps: ε of the layer norm.
        bf16: Return the second result in bfloat16, otherwise in float32.

    Returns:
        The sum, which is empty if nothing was added, and the convolved norm.
    """
    dtype = torch.bfloat16 if bf16 else torch.float32
    x, added = x.contiguous(), None if added is None else added.to(dtype).contiguous()
    bias, conv_weight = _contiguous(bias), _contiguous(conv_weight)
    norm_weight, norm_bias = norm_weight.contiguous(), norm_bias.contiguous()
    total = x.new_empty(0) if added is None else torch.empty_like(x)
    y = torch.empty_like(x, dtype=dtype)
    require_library().run(
        "residual_forward", _sizes(x, conv_weight, columns, stride, eps), bf16,
        x, added, bias, norm_weight, norm_bias, conv_weight, total, y,
    )  # fmt: skip
    return total, y


@custom_op("scanline::residual_backward")
def _residual_backward(
    grad_sum: Tensor | None, grad_y: Tensor, total: Tensor, norm_weight: Tensor,
    norm_bias: Tensor, conv_weight: Tensor | None, columns: int, stride: int, eps: float,
    added: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    bf16 = grad_y.dtype == torch.bfloat16
    grad_y, total = grad_y.contiguous(), total.contiguous()
    grad_sum, conv_weight = _contiguous(grad_sum), _contiguous(conv_weight)
    norm_weight, norm_bias = norm_weight.contiguous(), norm_bias.contiguous()
    grad = torch.empty_like(total)
    grad_bf16 = torch.empty_like(grad_y) if added and bf16 else grad.new_empty(0)
    parameter_grads = total.new_zeros(len(total), 3 + TAPS, total.shape[-1])
    require_library().run(
        "residual_backward", _sizes(total, conv_weight, columns, stride, eps), bf16,
        grad_sum, grad_y, total, norm_weight, norm_bias, conv_weight,
        grad, grad_bf16 if added and bf16 else None, parameter_grads,
    )  # fmt: skip
    return grad, grad_bf16, parameter_grads.sum(0)


@custom_op("scanline::bias_gelu")
def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """Return GELU(x + bias): ``x: [..., F]`` float32 or bfloat16, ``bias: [F]`` float32.

    F must be a multiple of the vector size.
    """
    x, bias = x.contiguous(), bias.contiguous()
    y = torch.empty_like(x)
    require_library().run("bias_gelu_forward", *_rows(x), x, bias, y)
    return y


@custom_op("scanline::bias_gelu_backward")
def _bias_gelu_backward(grad: Tensor, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    grad, x, bias = grad.contiguous(), x.contiguous(), bias.contiguous()
    grad_x = torch.empty_like(x)
    rows, features, *rest = _rows(x)
    block_grads = bias.new_zeros(-(-rows // _ROWS), features)
    require_library().run(
        "bias_gelu_backward", rows, features, *rest, grad, x, bias, grad_x, block_grads
    )
    return grad_x, block_grads.sum(0)


def _rows(x: Tensor) -> tuple[int, int, int, bool]:
    features = x.shape[-1]
    return x.numel() // features, features, _ROWS, x.dtype == torch.bfloat16


def _setup_residual(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, added, _, norm_weight, norm_bias, conv_weight, *ctx.sizes, _ = inputs
    ctx.added, ctx.dtype = None if added is None else added.dtype, output[1].dtype
    ctx.set_materialize_grads(False)
    total = x if added is None else output[0]
    ctx.save_for_backward(total, norm_weight, norm_bias, conv_weight)


def _differentiate_residual(ctx: Any, grad_sum: Tensor | None, grad_y: Tensor | None) -> Any:
    total, norm_weight, norm_bias, conv_weight = ctx.saved_tensors
    added = ctx.added is not None
    if grad_y is None:
        grad_y = torch.zeros_like(total, dtype=ctx.dtype)
    grad, grad_bf16, parameter_grads = _residual_backward(
        grad_sum if added else None, grad_y, total, norm_weight, norm_bias, conv_weight,
        *ctx.sizes, added,
    )  # fmt: skip
    grad_bias, grad_norm_weight, grad_norm_bias, *_ = parameter_grads
    grad_conv = None if conv_weight is None else parameter_grads[3:]
    if added:  # computed separately only in bfloat16
        grad_added = (grad_bf16 if grad_bf16.numel() else grad).to(ctx.added)
    else:
        grad_added = grad_bias = None
    return (
        grad,
        grad_added,
        grad_bias,
        grad_norm_weight,
        grad_norm_bias,
        grad_conv,
        None,
        None,
        None,
        None,
    )


def _setup_gelu(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate_gelu(ctx: Any, grad: Tensor) -> Any:
    return _bias_gelu_backward(grad, *ctx.saved_tensors)


residual.register_autograd(_differentiate_residual, setup_context=_setup_residual)
bias_gelu.register_autograd(_differentiate_gelu, setup_context=_setup_gelu)
