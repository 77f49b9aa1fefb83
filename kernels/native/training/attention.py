"""Causal linear attention and its gradient in C++ (attention.h), as torch operators."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from scanline.kernels.custom_op import custom_op
from scanline.kernels.native.training.library import require_library, supports


class _Sizes(ctypes.Structure):
    """``AttentionSizes`` in attention.h."""

    _fields_ = [
        *[(name, ctypes.c_int64) for name in ["images", "positions", "heads", "head_size"]],
        ("epsilon", ctypes.c_float),
    ]


def supports_attention(heads: Tensor) -> bool:
    """Return True if ``attention`` supports heads of this type and size, ``[..., K]``."""
    supported = supports(heads, torch.float32, torch.bfloat16)
    return supported and heads.shape[-1] // require_library().lanes in (1, 2, 4, 8)


def _sizes(qkv: Tensor, eps: float) -> Any:
    B, T, _, H, K = qkv.shape
    return ctypes.byref(_Sizes(B, T, H, K, eps))


@custom_op("scanline::attention")
def attention(
    qkv: Tensor, bias: Tensor, kv: Tensor, z: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute causal linear attention with φ = elu + 1 (eq. 7, 9-12), position by position.

    Args:
        qkv: Queries, keys and values before the feature map, float32 or bfloat16
            ``[B, T, 3, H, K]``.
        bias: float32 ``[3, H, K]``, added to ``qkv``.
        kv: Initial state, float32 ``[B, H, K, K]``.
        z: Initial state, float32 ``[B, H, K]``.
        eps: ε of the denominator.

    Returns:
        ``o: [B, T, H, K]`` like ``qkv``, the final ``kv`` and ``z``, and the denominators, float32
        ``[B, T, H]``.
    """
    qkv, bias = qkv.contiguous(), bias.contiguous()
    kv, z = kv.contiguous().clone(), z.contiguous().clone()
    o = qkv.new_empty(qkv[:, :, 0].shape)
    denominators = kv.new_empty(o.shape[:3])
    bf16 = qkv.dtype == torch.bfloat16
    require_library().run(
        "attention_forward", _sizes(qkv, eps), bf16, qkv, bias, kv, z, o, denominators
    )
    return o, kv, z, denominators


@custom_op("scanline::attention_backward")
def _backward(
    qkv: Tensor, bias: Tensor, kv: Tensor, z: Tensor, eps: float, denominators: Tensor,
    grad_o: Tensor, grad_kv: Tensor, grad_z: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    qkv, bias, grad_o, kv, z = (x.contiguous() for x in (qkv, bias, grad_o, kv, z))
    grad_kv, grad_z = grad_kv.contiguous().clone(), grad_z.contiguous().clone()
    grad, grad_bias = torch.empty_like(qkv), kv.new_empty(len(qkv), *bias.shape)
    require_library().run(
        "attention_backward", _sizes(qkv, eps), qkv.dtype == torch.bfloat16, qkv, bias,
        denominators, grad_o, kv, z, grad_kv, grad_z, grad, grad_bias,
    )  # fmt: skip
    return grad, grad_bias.sum(0), grad_kv, grad_z


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.eps = inputs
    ctx.save_for_backward(*tensors, output[3])


def _differentiate(ctx: Any, o: Tensor, kv: Tensor, z: Tensor, _denominators: Tensor) -> Any:
    *inputs, denominators = ctx.saved_tensors
    return (*_backward(*inputs, ctx.eps, denominators, o, kv, z), None)


attention.register_autograd(_differentiate, setup_context=_setup_context)
