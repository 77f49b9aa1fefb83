"""Linear attention in linear time: in chunks where it is causal, the form that trains.

Equations, shapes and the state are those of ``definitions.py``. ``z`` is what ``kv`` would be for
one more value that is always 1, so the chunked form carries both in one matrix of V + 1 columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from scanline.kernels.attention.features import FeatureMap, features
from scanline.kernels.attention.naive import (
    CHUNK,
    EPS,
    AttentionState,
    check_shapes,
)
from scanline.kernels.cuda.available import MAX_HEAD_SIZE, triton_available
from scanline.kernels.double_backward import refuse_double_backward
from scanline.kernels.native.training.attention import attention, supports_attention


def _chunks(x: Tensor, chunk: int) -> Tensor:
    """``[B, T, H, X]`` → contiguous ``[B, H, T/chunk, chunk, X]``, zeros after the end.

    A zero key adds nothing to the sums, so padding leaves the final state exact.
    """
    B, T, H, X = x.shape
    x = F.pad(x, (0, 0, 0, 0, 0, -T % chunk))
    return x.view(B, -(-T // chunk), chunk, H, X).permute(0, 3, 1, 2, 4).contiguous()


def _unchunks(x: Tensor, length: int) -> Tensor:
    B, H, n, chunk, X = x.shape
    return x.permute(0, 2, 3, 1, 4).reshape(B, n * chunk, H, X)[:, :length]


def _exclusive_sum(x: Tensor, first: Tensor, reverse: bool = False) -> tuple[Tensor, Tensor]:
    """Running sum over dim 2 that starts at ``first`` and leaves each entry itself out.

    Returns the sums, shaped like ``x``, and the total.
    """
    sums = torch.empty_like(x)
    running = first
    order = range(x.shape[2])
    for i in reversed(order) if reverse else order:
        sums[:, :, i] = running
        running = running + x[:, :, i]
    return sums, running


class _ChunkedLinearAttention(torch.autograd.Function):
    """Unnormalised-then-normalised attention in chunks, with the backward of eq. 13-15.

    Only inputs and outputs are kept for the backward pass: the states between chunks are summed
    again there, so memory is linear in T and holds no state per position.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, initial: Tensor, eps: float, chunk: int
    ) -> tuple[Tensor, Tensor]:
        qc, kc, vc = (
            _chunks(q, chunk),
            _chunks(k, chunk),
            _chunks(F.pad(v, (0, 1), value=1.0), chunk),
        )
        before, final = _exclusive_sum(kc.transpose(-1, -2) @ vc, initial)
        sums = (qc @ kc.transpose(-1, -2)).tril_() @ vc
        sums += qc @ before
        sums = _unchunks(sums, q.shape[1])
        denominator = sums[..., -1:] + eps
        o = sums[..., :-1] / denominator
        ctx.save_for_backward(q, k, v, initial, o, denominator)
        ctx.chunk = chunk
        return o, final

    @staticmethod
    @refuse_double_backward
    def backward(
        ctx: Any, grad_o: Tensor, grad_final: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, None, None]:
        q, k, v, initial, o, denominator = ctx.saved_tensors
        chunk, T = ctx.chunk, q.shape[1]
        # Quotient rule: with v extended by the column of ones, the sums' gradient is one matrix.
        grad_sums = torch.cat([grad_o, -(grad_o * o).sum(-1, keepdim=True)], -1) / denominator
        qc, kc, vc = (
            _chunks(q, chunk),
            _chunks(k, chunk),
            _chunks(F.pad(v, (0, 1), value=1.0), chunk),
        )
        gc = _chunks(grad_sums, chunk)
        before, _ = _exclusive_sum(kc.transpose(-1, -2) @ vc, initial)  # Σ_{i<j} k_i v_iᵀ
        after, grad_initial = _exclusive_sum(qc.transpose(-1, -2) @ gc, grad_final, reverse=True)
        grad_scores = (gc @ vc.transpose(-1, -2)).tril_()
        scores = (qc @ kc.transpose(-1, -2)).tril_()
        grad_q = grad_scores @ kc + gc @ before.transpose(-1, -2)  # eq. 13
        grad_k = grad_scores.transpose(-1, -2) @ qc + vc @ after.transpose(-1, -2)  # eq. 14
        grad_v = (scores.transpose(-1, -2) @ gc + kc @ after)[..., :-1]  # eq. 15
        return (
            _unchunks(grad_q, T),
            _unchunks(grad_k, T),
            _unchunks(grad_v, T),
            grad_initial,
            None,
            None,
        )


def uses_triton(q: Tensor, v: Tensor, chunk: int = CHUNK) -> bool:
    """Whether ``linear_attention`` runs its Triton kernels for these tensors and this chunk.

    They take float32, float16 and bfloat16, heads of 16 to 64 features (of which random maps have
    four for each number) and the usual chunk, though theirs are their own, on an NVIDIA device of
    capability 8.0 or more where Triton is installed.
    """
    return (
        q.dtype != torch.float64
        and min(q.shape[3], v.shape[3]) >= 16
        and max(q.shape[3], v.shape[3]) <= MAX_HEAD_SIZE
        and chunk == CHUNK
        and triton_available(q.device)
    )


def _first_state(q: Tensor, given: AttentionState | None) -> tuple[Tensor, Tensor]:
    if given is not None:
        return given.kv.float(), given.z.float()
    B, _, H, K = q.shape
    return q.new_zeros(B, H, K, K, dtype=torch.float32), q.new_zeros(B, H, K, dtype=torch.float32)


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    initial_state: AttentionState | None = None,
    eps: float = EPS,
    chunk: int = CHUNK,
    feature_map: FeatureMap | None = None,
    directions: Tensor | None = None,
    causal: bool = True,
) -> tuple[Tensor, AttentionState]:
    """Compute eq. 9-12 in chunks: linear time and memory in T, with its own backward (eq. 13-15).

    ``q, k: [B, T, H, K]``, ``v: [B, T, H, V]``, q and k before the feature map where one is named
    (``random`` with its ``directions``); returns ``o`` like ``v`` and the final state. Without
    ``causal`` every position sees all (eq. 6). Sums are float32 (float64 for float64 inputs)
    whatever the inputs' dtype, and so is the state. Gradients flow to q, k, v and the initial
    state, from o and the final state. Causal, it runs as Triton kernels where ``uses_triton`` says
    so, and as C++ on a CPU where ``supports_attention`` does (position by
    position: ``chunk`` is not needed there); as torch operations elsewhere. Causal
    gradients have no gradients of their own,
    and refuse to (``naive_linear_attention``'s have). Raises ``ValueError`` on wrong shapes or an
    unknown feature map.
    """
    check_shapes(q, k, v)
    if chunk < 1:
        raise ValueError(f"a chunk must hold a position or more, not {chunk}")
    if feature_map != "elu":  # which the kernels apply themselves
        q, k = features(q, feature_map, directions), features(k, feature_map, directions)
        feature_map = None
    check_shapes(q, k, v, initial_state)
    if causal and uses_triton(q, v, chunk):
        from scanline.kernels.cuda.attention import (
            triton_linear_attention,  # Triton need not be there
        )

        return triton_linear_attention(q, k, v, initial_state, eps, feature_map)
    alike = q.shape == v.shape and q.dtype == v.dtype
    if causal and feature_map == "elu" and alike and supports_attention(q):
        kv, z = _first_state(q, initial_state)
        qkv = torch.stack((q, k.to(q.dtype), v), 2)
        o, kv, z, _ = attention(qkv, kv.new_zeros(qkv.shape[2:]), kv, z, eps)
        return o, AttentionState(kv, z)
    q, k = features(q, feature_map), features(k, feature_map)
    B, _, H, K = q.shape
    V = v.shape[3]
    sums = torch.float64 if q.dtype == torch.float64 else torch.float32
    if initial_state is None:
        initial = q.new_zeros(B, H, K, V + 1, dtype=sums)
    else:
        initial = torch.cat([initial_state.kv, initial_state.z.unsqueeze(-1)], -1).to(sums)
    with torch.autocast(q.device.type, enabled=False):
        attend = _ChunkedLinearAttention.apply if causal else _whole
        o, final = attend(q.to(sums), k.to(sums), v.to(sums), initial, eps, chunk)
    return o.to(v.dtype), AttentionState(final[..., :-1], final[..., -1])


def packed_linear_attention(
    qkv: Tensor, bias: Tensor | None, feature_map: FeatureMap, directions: Tensor | None = None
) -> Tensor:
    """Compute ``linear_attention`` from the start of an image, of q, k and v as one product.

    ``qkv: [B, T, 3, H, K]`` and the ``bias: [3, H, K]`` to add to it, None once that is added.
    Returns ``o: [B, T, H, K]``.
    """
    q, _, v = qkv.unbind(2)
    on_device = feature_map == "elu" and uses_triton(q, v, CHUNK)
    if feature_map == "elu" and supports_attention(qkv) and not on_device:
        if bias is None:
            bias = qkv.new_zeros(qkv.shape[2:])
        o: Tensor = attention(qkv, bias.float(), *_first_state(q, None), EPS)[0]
        return o
    qkv = qkv if bias is None else qkv + bias.to(qkv.dtype)
    if on_device:
        from scanline.kernels.cuda.attention import triton_packed_attention  # as above

        return triton_packed_attention(qkv, feature_map)
    q, k, v = qkv.unbind(2)
    return linear_attention(q, k, v, feature_map=feature_map, directions=directions)[0]


def _whole(
    q: Tensor, k: Tensor, v: Tensor, initial: Tensor, eps: float, _: int
) -> tuple[Tensor, Tensor]:
    """Attend to every position (eq. 6): the sums of all, and each query against them."""
    kv = initial + torch.einsum("bthk,bthv->bhkv", k, F.pad(v, (0, 1), value=1.0))
    sums = torch.einsum("bthk,bhkv->bthv", q, kv)
    return sums[..., :-1] / (sums[..., -1:] + eps), kv
