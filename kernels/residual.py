"""What stands between two products of a layer: add to the stream, normalise, convolve; and GELU.

    sum = x + added        y = convolution(norm(sum))

On a CPU each is one pass over memory in C++ where that can be built, else plain torch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from scanline.kernels.native.training import residual as native
from scanline.kernels.native.training.passes import takes
from scanline.kernels.short_conv import convolve_steps


class Product(NamedTuple):
    """What a linear map gives: ``x: [B, T, D]``, and its bias ``[D]``, None once that is added."""

    x: Tensor
    bias: Tensor | None = None


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Product:
    """Multiply ``x: [B, T, I]`` with ``weight: [D, I]``, and leave ``bias: [D]`` to the next pass.

    torch would copy it into every row first.
    """
    if takes(x, torch.float32, torch.bfloat16) and takes(bias, torch.float32):
        return Product(F.linear(x, weight), bias)
    return Product(F.linear(x, weight, bias))


def whole(added: Product) -> Tensor:
    """Give a product with its bias."""
    return added.x if added.bias is None else added.x + added.bias


def naive_residual(
    x: Tensor,
    added: Product | None,
    norm: tuple[Tensor, Tensor],
    conv_weight: Tensor | None,
    columns: int,
    stride: int,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Compute ``residual`` as written: the definition."""
    total = x if added is None else x + whole(added)
    y = F.layer_norm(total, total.shape[-1:], *norm, eps)
    return total, y if conv_weight is None else convolve_steps(y, conv_weight, columns, stride)


def residual(
    x: Tensor,
    added: Product | None,
    norm: tuple[Tensor, Tensor],
    conv_weight: Tensor | None = None,
    columns: int = 0,
    stride: int = 1,
    eps: float = 1e-5,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Add to the stream, and give the sum and what a product sees of it: its norm, convolved.

    ``x: [B, T, D]``; ``added`` like it in any dtype, or None for nothing; ``norm``: weight and
    bias, ``[D]``; ``conv_weight: [5, D]``, or None for no convolution, which has rows of
    ``columns`` steps and pixels of ``stride`` (``kernels/short_conv.py``). ``dtype`` is what the
    second may come in, if it is bfloat16. Gradients flow to all tensors.
    """
    if not takes(x, torch.float32):
        return naive_residual(x, added, norm, conv_weight, columns, stride, eps)
    product = bias = None
    if added is not None:
        product = added.x
        bias = torch.zeros_like(norm[1]) if added.bias is None else added.bias
    total, y = native.residual(
        x, product, bias, *norm, conv_weight, columns, stride, eps, dtype == torch.bfloat16
    )
    return x if added is None else total, y


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Give GELU(W x + b): ``x: [..., D]``, ``weight: [F, D]``, ``bias: [F]`` → ``[..., F]``."""
    if takes(x, torch.float32, torch.bfloat16) and takes(bias, torch.float32):
        y: Tensor = native.bias_gelu(F.linear(x, weight), bias)
        return y
    return F.gelu(F.linear(x, weight, bias))
