"""Linear maps, with separate implementations for training on CPUs and GPUs."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from scanline.kernels.cuda.available import triton_available
from scanline.kernels.native.cpu import cpu
from scanline.kernels.native.training import linear as native
from scanline.kernels.native.training.library import is_available, supports
from scanline.kernels.native.training.residual import bias_gelu


class LinearOutput(NamedTuple):
    """Output ``[B, T, D]`` of a linear map, and its bias ``[D]``, None if already added."""

    x: Tensor
    bias: Tensor | None = None


def autocast_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which autocast multiplies ``x``; its own dtype without autocast."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def linear_without_bias(x: Tensor, weight: Tensor) -> Tensor:
    """Return W x in autocast's dtype: ``x: [..., I]``, ``weight: [O, I]``.

    In a single-threaded process on a CPU with bf16 dot products but without AMX, the weight's
    gradient is computed in C++. Torch takes a quarter longer and rounds it to bfloat16.
    """
    if (
        _is_trained_on_cpu(x, weight, torch.bfloat16)
        and is_available()
        and _native_gradient_is_faster()
    ):
        return native.linear(x.to(torch.bfloat16), weight)
    return F.linear(x, weight)


def _native_gradient_is_faster() -> bool:
    if torch.get_num_threads() > 1:  # torch's idle threads spin and would slow down ours
        return False
    features = cpu()[1]
    return "avx512_bf16" in features and "amx_tile" not in features  # torch uses AMX


def linear_deferred_bias(x: Tensor, weight: Tensor, bias: Tensor) -> LinearOutput:
    """Multiply ``x: [B, T, I]`` by ``weight: [D, I]``; the next pass adds ``bias: [D]``.

    The bias is deferred because PyTorch would copy it into every row on a CPU, and would sum its
    gradient slowly on a GPU. Without a fused implementation for these tensors, it is added here.
    """
    floats = (torch.float32, torch.bfloat16)
    if supports(bias, torch.float32) and supports(x, *floats) and autocast_dtype(x) in floats:
        return LinearOutput(linear_without_bias(x, weight), bias)
    if triton_available(x.device) and bias.dtype == torch.float32:
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
    """Return W x + b in the weight's dtype, ignoring autocast: ``x: [..., I]``, ``weight: [O, I]``.

    Training in float32 on a non-Intel CPU with AVX-512 uses oneDNN. Torch would use MKL, which does
    not use AVX-512 there and takes twice as long.
    """
    with torch.autocast(x.device.type, enabled=False):
        x = x.to(weight.dtype)
        if _is_trained_on_cpu(x, weight, torch.float32) and is_available() and _onednn_is_faster():
            y = native.onednn_linear(x.flatten(0, -2), weight, bias)
            return y.view(*x.shape[:-1], -1)
        return F.linear(x, weight, bias)


def _onednn_is_faster() -> bool:
    onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return bool(onednn and torch.cpu._is_avx512_supported() and "Intel" not in cpu()[0])


def _is_trained_on_cpu(x: Tensor, weight: Tensor, dtype: torch.dtype) -> bool:
    """Return True if a float32 weight is trained on a CPU and multiplied in ``dtype``."""
    on_cpu = x.device.type == "cpu" and weight.dtype == torch.float32 and x.numel() > 0
    trained = weight.requires_grad and torch.is_grad_enabled()
    return on_cpu and autocast_dtype(x) == dtype and trained
