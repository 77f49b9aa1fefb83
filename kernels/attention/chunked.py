"""Linear attention in linear time in plain PyTorch: chunked if causal.

Equations, shapes and state are those of ``naive.py``. ``z`` equals ``kv`` for an additional value
that is always 1, so both are kept in one matrix with V + 1 columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from scanline.kernels.attention.naive import CHUNK, AttentionState
from scanline.kernels.constants import ATTENTION_EPS
from scanline.kernels.double_backward import refuse_double_backward


def _chunks(x: Tensor, chunk: int) -> Tensor:
    """Reshape ``[B, T, H, X]`` to contiguous ``[B, H, T/chunk, chunk, X]``, padded with zeros.

    A zero key adds nothing to the state, so the final state stays exact.
    """
    B, T, H, X = x.shape
    x = F.pad(x, (0, 0, 0, 0, 0, -T % chunk))
    return x.view(B, -(-T // chunk), chunk, H, X).permute(0, 3, 1, 2, 4).contiguous()


def _unchunks(x: Tensor, length: int) -> Tensor:
    B, H, n, chunk, X = x.shape
    return x.permute(0, 2, 3, 1, 4).reshape(B, n * chunk, H, X)[:, :length]


def _exclusive_sum(x: Tensor, reverse: bool = False) -> tuple[Tensor, Tensor]:
    """Return the exclusive running sum over dimension 2, and the total."""
    sums = torch.empty_like(x)
    running = x.new_zeros(x.shape[:2] + x.shape[3:])
    order = range(x.shape[2])
    for i in reversed(order) if reverse else order:
        sums[:, :, i] = running
        running = running + x[:, :, i]
    return sums, running


class _ChunkedLinearAttention(torch.autograd.Function):
    """Causal attention in chunks, with the gradients of eq. 13-15.

    Only inputs and outputs are saved for the backward pass, which computes the states between
    chunks again. Memory is therefore linear in T, without a state per position. The final state has
    no gradient.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
        qc, kc, vc = (
            _chunks(q, chunk),
            _chunks(k, chunk),
            _chunks(F.pad(v, (0, 1), value=1.0), chunk),
        )
        before, final = _exclusive_sum(kc.transpose(-1, -2) @ vc)
        sums = (qc @ kc.transpose(-1, -2)).tril_() @ vc
        sums += qc @ before
        sums = _unchunks(sums, q.shape[1])
        denominator = sums[..., -1:] + ATTENTION_EPS
        o = sums[..., :-1] / denominator
        ctx.save_for_backward(q, k, v, o, denominator)
        ctx.mark_non_differentiable(final)
        ctx.chunk = chunk
        return o, final

    @staticmethod
    @refuse_double_backward
    def backward(ctx: Any, grad_o: Tensor, _final: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, o, denominator = ctx.saved_tensors
        chunk, T = ctx.chunk, q.shape[1]
        # Quotient rule: with a column of ones in v, the gradient of numerator and denominator is
        # one matrix.
        grad_sums = torch.cat([grad_o, -(grad_o * o).sum(-1, keepdim=True)], -1) / denominator
        qc, kc, vc = (
            _chunks(q, chunk),
            _chunks(k, chunk),
            _chunks(F.pad(v, (0, 1), value=1.0), chunk),
        )
        gc = _chunks(grad_sums, chunk)
        before, _ = _exclusive_sum(kc.transpose(-1, -2) @ vc)  # Σ_{i<j} k_i v_iᵀ
        after, _ = _exclusive_sum(qc.transpose(-1, -2) @ gc, reverse=True)
        grad_scores = (gc @ vc.transpose(-1, -2)).tril_()
        scores = (qc @ kc.transpose(-1, -2)).tril_()
        grad_q = grad_scores @ kc + gc @ before.transpose(-1, -2)  # eq. 13
        grad_k = grad_scores.transpose(-1, -2) @ qc + vc @ after.transpose(-1, -2)  # eq. 14
        grad_v = (scores.transpose(-1, -2) @ gc + kc @ after)[..., :-1]  # eq. 15
        return _unchunks(grad_q, T), _unchunks(grad_k, T), _unchunks(grad_v, T), None


def _full_linear_attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Compute attention of every query to all positions (eq. 6)."""
    kv = torch.einsum("bthk,bthv->bhkv", k, F.pad(v, (0, 1), value=1.0))
    sums = torch.einsum("bthk,bhkv->bthv", q, kv)
    return sums[..., :-1] / (sums[..., -1:] + ATTENTION_EPS), kv


def torch_linear_attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = True, chunk: int = CHUNK
) -> tuple[Tensor, AttentionState]:
    """Compute linear attention of queries and keys after the feature map.

    Sums are float32 whatever the inputs' dtype, or float64 for float64 inputs.

    Args:
        q: Queries ``[B, T, H, K]``.
        k: Keys, like ``q``.
        v: Values ``[B, T, H, V]``.
        causal: If False, every position attends to all positions (eq. 6).
        chunk: Positions per chunk of the causal form.

    Returns:
        ``o`` like ``v``, and the final state.
    """
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    with torch.autocast(q.device.type, enabled=False):
        inputs = q.to(dtype), k.to(dtype), v.to(dtype)
        if causal:
            o, final = _ChunkedLinearAttention.apply(*inputs, chunk)
        else:
            o, final = _full_linear_attention(*inputs)
    return o.to(v.dtype), AttentionState(final[..., :-1], final[..., -1])
