"""What stands between two products of a layer, in C++ (residual.h, activation.h)."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from scanline.kernels.custom_op import custom_op
from scanline.kernels.native.training.library import require_library
from scanline.kernels.short_conv import TAPS

_PIECE = 32  # positions to a piece where no row of an image is needed
_ROWS = 64  # of a product, to a piece


class _Sizes(ctypes.Structure):
    """As in residual.h."""

    _fields_ = [
        *[(name, ctypes.c_int64) for name in ["images", "positions", "features"]],
        *[(name, ctypes.c_int64) for name in ["columns", "stride", "convolved"]],
        ("epsilon", ctypes.c_float),
    ]


def _even(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def _sizes(x: Tensor, conv_weight: Tensor | None, columns: int, stride: int, eps: float) -> Any:
    convolved = conv_weight is not None
    return ctypes.byref(_Sizes(*x.shape, columns if convolved else _PIECE, stride, convolved, eps))


@custom_op("scanline::residual")
def residual(
    x: Tensor, added: Tensor | None, bias: Tensor | None, norm_weight: Tensor,
    norm_bias: Tensor, conv_weight: Tensor | None, columns: int, stride: int, eps: float,
    bf16: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Add to the stream, normalise the sum, convolve that.

    ``x: [B, T, D]`` float32, D in whole vectors; ``added`` like it and its ``bias: [D]``, or None;
    ``norm_weight, norm_bias: [D]``; ``conv_weight: [5, D]`` or None, with ``columns`` steps to a
    row of the image and ``stride`` to a pixel. Returns the sum (empty where nothing was added) and
    what comes out, bfloat16 if ``bf16``, else float32.
    """
    dtype = torch.bfloat16 if bf16 else torch.float32
    x, added = x.contiguous(), None if added is None else added.to(dtype).contiguous()
    bias, conv_weight = _even(bias), _even(conv_weight)
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
    grad_sum, conv_weight = _even(grad_sum), _even(conv_weight)
    norm_weight, norm_bias = norm_weight.contiguous(), norm_bias.contiguous()
    grad = torch.empty_like(total)
    of_added = torch.empty_like(grad_y) if added and bf16 else grad.new_empty(0)
    of_images = total.new_zeros(len(total), 3 + TAPS, total.shape[-1])
    require_library().run(
        "residual_backward", _sizes(total, conv_weight, columns, stride, eps), bf16,
        grad_sum, grad_y, total, norm_weight, norm_bias, conv_weight,
        grad, of_added if added and bf16 else None, of_images,
    )  # fmt: skip
    return grad, of_added, of_images.sum(0)


@custom_op("scanline::bias_gelu")
def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """Give GELU(x + bias): ``x: [..., F]`` float32 or bfloat16, F whole vectors; ``bias: [F]``."""
    x, bias = x.contiguous(), bias.contiguous()
    y = torch.empty_like(x)
    require_library().run("bias_gelu_forward", *_rows(x), x, bias, y)
    return y


@custom_op("scanline::bias_gelu_backward")
def _bias_gelu_backward(grad: Tensor, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    grad, x, bias = grad.contiguous(), x.contiguous(), bias.contiguous()
    grad_x = torch.empty_like(x)
    rows, features, *rest = _rows(x)
    of_pieces = bias.new_zeros(-(-rows // _ROWS), features)
    require_library().run(
        "bias_gelu_backward", rows, features, *rest, grad, x, bias, grad_x, of_pieces
    )
    return grad_x, of_pieces.sum(0)


def _rows(x: Tensor) -> tuple[int, int, int, bool]:
    features = x.shape[-1]
    return x.numel() // features, features, _ROWS, x.dtype == torch.bfloat16


# What torch.compile needs to know of each, and the way back.


@residual.register_fake
def _(x: Tensor, added: Tensor | None, *rest: Any) -> Any:
    total = x.new_empty(0 if added is None else x.shape)
    return total, x.new_empty(x.shape, dtype=torch.bfloat16 if rest[-1] else torch.float32)


@_residual_backward.register_fake
def _(grad_sum: Tensor | None, grad_y: Tensor, total: Tensor, *rest: Any) -> Any:
    bf16 = rest[-1] and grad_y.dtype == torch.bfloat16
    of_added = grad_y.new_empty(grad_y.shape) if bf16 else total.new_empty(0)
    return total.new_empty(total.shape), of_added, total.new_empty(3 + TAPS, total.shape[-1])


@bias_gelu.register_fake
def _(x: Tensor, bias: Tensor) -> Any:
    return x.new_empty(x.shape)


@_bias_gelu_backward.register_fake
def _(grad: Tensor, x: Tensor, bias: Tensor) -> Any:
    return x.new_empty(x.shape), bias.new_empty(bias.shape)


def _keep_residual(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, added, _, norm_weight, norm_bias, conv_weight, *ctx.sizes, _ = inputs
    ctx.added, ctx.dtype = None if added is None else added.dtype, output[1].dtype
    ctx.set_materialize_grads(False)
    total = x if added is None else output[0]
    ctx.save_for_backward(total, norm_weight, norm_bias, conv_weight)


def _residual_grad(ctx: Any, grad_sum: Tensor | None, grad_y: Tensor | None) -> Any:
    total, norm_weight, norm_bias, conv_weight = ctx.saved_tensors
    added = ctx.added is not None
    if grad_y is None:
        grad_y = torch.zeros_like(total, dtype=ctx.dtype)
    grad, of_added, of_weights = _residual_backward(
        grad_sum if added else None, grad_y, total, norm_weight, norm_bias, conv_weight,
        *ctx.sizes, added,
    )  # fmt: skip
    of_bias, of_norm_weight, of_norm_bias, *_ = of_weights
    of_conv = None if conv_weight is None else of_weights[3:]
    if added:  # in bfloat16, or as the stream's
        mine = (of_added if of_added.numel() else grad).to(ctx.added)
    else:
        mine = of_bias = None
    return grad, mine, of_bias, of_norm_weight, of_norm_bias, of_conv, None, None, None, None


def _keep_gelu(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gelu_grad(ctx: Any, grad: Tensor) -> Any:
    return _bias_gelu_backward(grad, *ctx.saved_tensors)


residual.register_autograd(_residual_grad, setup_context=_keep_residual)
bias_gelu.register_autograd(_gelu_grad, setup_context=_keep_gelu)
