"""Causal linear attention and its gradient in C++ (attention.h)."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from scanline.kernels.constants import FeatureMap
from scanline.kernels.double_backward import refuse_double_backward
from scanline.kernels.native.training.library import require_library, supports

FEATURE_MAP: FeatureMap = "elu"  # which ``attention`` applies


class _Sizes(ctypes.Structure):
    """``AttentionSizes`` in attention.h."""

    _fields_ = [(name, ctypes.c_int64) for name in ("images", "positions", "heads", "head_size")]


def supports_attention(heads: Tensor, feature_map: FeatureMap) -> bool:
    """Return True if ``attention`` supports heads of this type and size, ``[..., K]``."""
    supported = feature_map == FEATURE_MAP and supports(heads, torch.float32, torch.bfloat16)
    return supported and heads.shape[-1] // require_library().lanes in (1, 2, 4, 8)


def _sizes(qkv: Tensor) -> Any:
    B, T, _, H, K = qkv.shape
    return ctypes.byref(_Sizes(B, T, H, K))


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, bias: Tensor) -> Tensor:
        qkv, bias = qkv.contiguous(), bias.contiguous()
        o = qkv.new_empty(qkv[:, :, 0].shape)
        denominators = bias.new_empty(o.shape[:3])
        bf16 = qkv.dtype == torch.bfloat16
        require_library().run("attention_forward", _sizes(qkv), bf16, qkv, bias, o, denominators)
        ctx.save_for_backward(qkv, bias, denominators)
        return o

    @staticmethod
    @refuse_double_backward
    def backward(ctx: Any, grad_o: Tensor) -> tuple[Tensor, Tensor]:
        qkv, bias, denominators = ctx.saved_tensors
        grad_o = grad_o.contiguous()
        grad, grad_bias = torch.empty_like(qkv), bias.new_empty(len(qkv), *bias.shape)
        require_library().run(
            "attention_backward", _sizes(qkv), qkv.dtype == torch.bfloat16, qkv, bias,
            denominators, grad_o, grad, grad_bias,
        )  # fmt: skip
        return grad, grad_bias.sum(0)


def attention(qkv: Tensor, bias: Tensor) -> Tensor:
    """Compute causal linear attention with φ = elu + 1 (eq. 7, 9-12), position by position.

    Args:
        qkv: Queries, keys and values before the feature map, float32 or bfloat16
            ``[B, T, 3, H, K]``.
        bias: float32 ``[3, H, K]``, added to ``qkv``.

    Returns:
        ``o: [B, T, H, K]`` like ``qkv``.
    """
    o: Tensor = _Attention.apply(qkv, bias)
    return o
