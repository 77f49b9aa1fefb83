"""Linear maps, with separate implementations for training on CPUs and GPUs."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from scanline.kernels.cuda.available import triton_available
from scanline.kernels.native.training.library import supports
from scanline.kernels.native.training.residual import bias_gelu


class LinearOutput(NamedTuple):
    """Output ``[B, T, D]`` of a linear map, and its bias ``[D]``, None if already added."""

    x: Tensor
    bias: Tensor | None = None


def autocast_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which autocast multiplies ``x``; its own dtype without autocast."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def linear_deferred_bias(x: Tensor, weight: Tensor, bias: Tensor) -> LinearOutput:
    """Multiply ``x: [B, T, I]`` by ``weight: [D, I]``; the next pass adds ``bias: [D]``.

    The bias is deferred because PyTorch would copy it into every row on a CPU, and would sum its
    gradient slowly on a GPU. Without a fused implementation for these tensors, it is added here.
    """
    floats = (torch.float32, torch.bfloat16)
    native = supports(bias, torch.float32) and supports(x, *floats) and autocast_dtype(x) in floats
    if native or (triton_available(x.device) and bias.dtype == torch.float32):
        return LinearOutput(F.linear(x, weight), bias)
    return LinearOutput(F.linear(x, weight, bias))


def with_bias(output: LinearOutput) -> Tensor:
    """Return a linear map's output with its bias added."""
    return output.x if output.bias is None else output.x + output.bias


def linear_with_bias(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return W x + b in autocast's dtype, for outputs that no fused pass follows."""
    if triton_available(x.device) and weight.dtype == bias.dtype == torch.float32:
        from scanline.kernels.cuda.linear import triton_linear  # imports Triton

        return triton_linear(x, weight, bias, autocast_dtype(x))
    return F.linear(x, weight, bias)


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return GELU(W x + b): ``x: [..., D]``, ``weight: [F, D]``, ``bias: [F]`` → ``[..., F]``."""
    if triton_available(x.device):
        return F.gelu(linear_with_bias(x, weight, bias))
    product = linear_deferred_bias(x, weight, bias)
    if product.bias is None:
        return F.gelu(product.x)
    return bias_gelu(product.x, product.bias)


def full_precision_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return W x + b in the weight's dtype: ``x: [..., I]``, ``weight: [O, I]``, ``bias: [O]``.

    Autocast is ignored.
    """
    with torch.autocast(x.device.type, enabled=False):
        return F.linear(x.to(weight.dtype), weight, bias)
