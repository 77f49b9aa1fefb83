"""Residual addition, layer norm and short convolution between two linear maps.

    sum = x + added        y = convolution(norm(sum))

On a CPU this is one pass over memory in C++, if that can be built; on an NVIDIA GPU a few Triton
kernels; otherwise plain PyTorch.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from scanline.kernels.cuda.available import MAX_FEATURES, triton_available
from scanline.kernels.native.training import residual as native
from scanline.kernels.native.training.library import supports
from scanline.kernels.ops.linear import LinearOutput, autocast_dtype, with_bias
from scanline.kernels.short_conv import check_conv, convolve_steps


def naive_residual(
    x: Tensor,
    added: LinearOutput | None,
    norm: tuple[Tensor, Tensor],
    conv_weight: Tensor | None,
    columns: int,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Compute ``residual`` in plain PyTorch, as the reference."""
    total = x if added is None else x + with_bias(added)
    y = F.layer_norm(total, total.shape[-1:], *norm, eps)
    return total, y if conv_weight is None else convolve_steps(y, conv_weight, columns)


def residual(
    x: Tensor,
    added: LinearOutput | None,
    norm: tuple[Tensor, Tensor],
    conv_weight: Tensor | None = None,
    columns: int = 0,
    eps: float = 1e-5,
    full_precision: bool = False,
) -> tuple[Tensor, Tensor]:
    """Add to the residual stream, and compute the next linear map's input from the sum.

    Gradients flow to all tensors.

    Args:
        x: Residual stream ``[B, T, D]``.
        added: Output of a linear map to add, in any dtype; None adds nothing.
        norm: Weight and bias ``[D]`` of the layer norm.
        conv_weight: Weight ``[5, D]`` of the short convolution; None for no convolution.
        columns: Pixels per image row, for the convolution.
        eps: ε of the layer norm.
        full_precision: Return the second result in the dtype of ``x`` even with autocast.

    Returns:
        The sum, and its norm, convolved. The latter is bfloat16 if autocast would multiply it in
        bfloat16.

    Raises:
        ValueError: The convolution's weight or columns do not fit.
    """
    if conv_weight is not None:
        check_conv(x.shape[-1], conv_weight, columns)
    weights = [*norm, *([] if conv_weight is None else [conv_weight])]
    if any(tensor.dtype != torch.float32 for tensor in (x, *weights)):
        return naive_residual(x, added, norm, conv_weight, columns, eps)
    if triton_available(x.device) and x.shape[-1] <= MAX_FEATURES:
        from scanline.kernels.cuda.residual import triton_residual  # imports Triton

        product, bias = (None, None) if added is None else (added.x, added.bias)
        dtype = x.dtype if full_precision else autocast_dtype(x)
        return triton_residual(x, product, bias, norm, conv_weight, columns, eps, dtype)
    if not supports(x, torch.float32):
        return naive_residual(x, added, norm, conv_weight, columns, eps)
    product = bias = None
    if added is not None:
        product = added.x
        bias = torch.zeros_like(norm[1]) if added.bias is None else added.bias
    bf16 = not full_precision and autocast_dtype(x) == torch.bfloat16
    total, y = native.residual(x, product, bias, *norm, conv_weight, columns, eps, bf16)
    return x if added is None else total, y
