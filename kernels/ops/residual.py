"""What stands between two products of a layer: add to the stream, normalise, convolve; and GELU.

    sum = x + added        y = convolution(norm(sum))

On a CPU each is one pass over memory in C++ where that can be built; on an NVIDIA device the sum,
its norm and the convolution are Triton kernels; elsewhere all is plain torch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from scanline.kernels.cuda.available import MAX_FEATURES, triton_available
from scanline.kernels.native.training import residual as native
from scanline.kernels.native.training.library import supports
from scanline.kernels.ops.linear import autocast_dtype, linear_without_bias
from scanline.kernels.short_conv import check_conv, convolve_steps


class LinearOutput(NamedTuple):
    """What a linear map gives: ``x: [B, T, D]``, and its bias ``[D]``, None once that is added."""

    x: Tensor
    bias: Tensor | None = None


def linear_deferred_bias(x: Tensor, weight: Tensor, bias: Tensor) -> LinearOutput:
    """Multiply ``x: [B, T, I]`` with ``weight: [D, I]``, and leave ``bias: [D]`` to the next pass.

    On a CPU torch would copy it into every row first, on a device sum its gradient slowly.
    """
    floats = (torch.float32, torch.bfloat16)
    if supports(bias, torch.float32) and supports(x, *floats) and autocast_dtype(x) in floats:
        return LinearOutput(linear_without_bias(x, weight), bias)
    if triton_available(x.device) and bias.dtype == torch.float32:
        return LinearOutput(F.linear(x, weight), bias)
    return LinearOutput(F.linear(x, weight, bias))


def linear_with_bias(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Give W x + b where no pass that could add the bias comes next; as ``linear``."""
    if triton_available(x.device) and weight.dtype == bias.dtype == torch.float32:
        from scanline.kernels.cuda.linear import triton_linear

        return triton_linear(x, weight, bias, autocast_dtype(x))
    return F.linear(x, weight, bias)


def with_bias(added: LinearOutput) -> Tensor:
    """Give a product with its bias."""
    return added.x if added.bias is None else added.x + added.bias


def naive_residual(
    x: Tensor,
    added: LinearOutput | None,
    norm: tuple[Tensor, Tensor],
    conv_weight: Tensor | None,
    columns: int,
    stride: int,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Compute ``residual`` as written: the definition."""
    total = x if added is None else x + with_bias(added)
    y = F.layer_norm(total, total.shape[-1:], *norm, eps)
    return total, y if conv_weight is None else convolve_steps(y, conv_weight, columns, stride)


def residual(
    x: Tensor,
    added: LinearOutput | None,
    norm: tuple[Tensor, Tensor],
    conv_weight: Tensor | None = None,
    columns: int = 0,
    stride: int = 1,
    eps: float = 1e-5,
    full_precision: bool = False,
) -> tuple[Tensor, Tensor]:
    """Add to the stream, and give the sum and what a product sees of it: its norm, convolved.

    ``x: [B, T, D]``; ``added`` like it in any dtype, or None for nothing; ``norm``: weight and
    bias, ``[D]``; ``conv_weight: [5, D]``, or None for no convolution, which has rows of
    ``columns`` steps and pixels of ``stride`` (``kernels/short_conv.py``). The second comes in
    bfloat16 if it is to be multiplied in that, and ``full_precision`` does not
    forbid it. Gradients flow to all tensors. Raises
    ``ValueError`` on a convolution that does not fit.
    """
    if conv_weight is not None:
        check_conv(x.shape[-1], conv_weight, columns, stride)
    given = [*norm, *([] if conv_weight is None else [conv_weight])]
    if any(tensor.dtype != torch.float32 for tensor in (x, *given)):
        return naive_residual(x, added, norm, conv_weight, columns, stride, eps)
    if triton_available(x.device) and x.shape[-1] <= MAX_FEATURES:
        from scanline.kernels.cuda.residual import triton_residual  # Triton need not be there

        product, bias = (None, None) if added is None else (added.x, added.bias)
        seen = x.dtype if full_precision else autocast_dtype(x)
        return triton_residual(x, product, bias, norm, conv_weight, columns, stride, eps, seen)
    if not supports(x, torch.float32):
        return naive_residual(x, added, norm, conv_weight, columns, stride, eps)
    product = bias = None
    if added is not None:
        product = added.x
        bias = torch.zeros_like(norm[1]) if added.bias is None else added.bias
    bf16 = not full_precision and autocast_dtype(x) == torch.bfloat16
    total, y = native.residual(x, product, bias, *norm, conv_weight, columns, stride, eps, bf16)
    return x if added is None else total, y


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Give GELU(W x + b): ``x: [..., D]``, ``weight: [F, D]``, ``bias: [F]`` → ``[..., F]``."""
    if triton_available(x.device):
        return F.gelu(linear_with_bias(x, weight, bias))
    product = linear_deferred_bias(x, weight, bias)
    if product.bias is None:
        return F.gelu(product.x)
    y: Tensor = native.bias_gelu(product.x, product.bias)
    return y
