"""Linear attention by definition: one recurrent step, and the full T × T matrix.

Equations are those of Katharopoulos et al., *Transformers are RNNs* (ICML 2020). ``q`` and ``k``
are after the feature map φ. With i ≤ j the causal order,

    S_j = Σ_i k_i v_iᵀ      (eq. 10, 18)        z_j = Σ_i k_i      (eq. 11, 19)
    o_j = (q_jᵀ S_j) / (q_jᵀ z_j + ε)           (eq. 9, 12, 20)

Shapes: ``q, k: [B, T, H, K]``, ``v, o: [B, T, H, V]``, state ``kv: [B, H, K, V]`` and
``z: [B, H, K]``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from scanline.kernels.constants import ATTENTION_EPS

CHUNK = 32


class AttentionState(NamedTuple):
    """Recurrent state: ``kv [B, H, K, V]`` and ``z [B, H, K]``."""

    kv: Tensor
    z: Tensor


def check_shapes(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise ``ValueError`` unless the tensors are floating-point and have this module's shapes."""
    if q.ndim != 4 or q.shape != k.shape:
        raise ValueError(f"q and k must both be [B, T, H, K], not {[*q.shape]} and {[*k.shape]}")
    if v.ndim != 4 or v.shape[:3] != q.shape[:3]:
        raise ValueError(f"v must be [B, T, H, V] with q's B, T, H {[*q.shape[:3]]}: {[*v.shape]}")
    if not (q.is_floating_point() and k.is_floating_point() and v.is_floating_point()):
        raise ValueError(f"q, k and v must hold floats, not {q.dtype}, {k.dtype} and {v.dtype}")


def linear_attention_step(q: Tensor, k: Tensor, v: Tensor, state: AttentionState) -> Tensor:
    """Compute one position as an RNN (eq. 18-20) and update the state in place.

    ``q, k: [B, H, K]``, ``v: [B, H, V]``. Returns ``o: [B, H, V]``.
    """
    kv, z = state
    kv += k.unsqueeze(-1) * v.unsqueeze(-2)
    z += k
    numerator = torch.einsum("bhk,bhkv->bhv", q, kv)
    denominator = (q * z).sum(-1, keepdim=True) + ATTENTION_EPS
    return numerator / denominator


def naive_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = True,
) -> tuple[Tensor, AttentionState]:
    """Compute eq. 9-12 with the full T × T matrix, as the reference for faster forms.

    Args:
        q: Queries ``[B, T, H, K]`` in any floating dtype.
        k: Keys, like ``q``.
        v: Values ``[B, T, H, V]``.
        causal: If False, every position attends to all positions (eq. 6).

    Returns:
        ``o`` like ``v``, and the final state.

    Raises:
        ValueError: Wrong shapes.
    """
    check_shapes(q, k, v)
    scores = torch.einsum("bthk,bshk->bhts", q, k)
    if causal:
        scores = scores.tril()
    numerator = torch.einsum("bhts,bshv->bthv", scores, v)
    denominator = scores.sum(-1).transpose(1, 2)
    final = AttentionState(torch.einsum("bthk,bthv->bhkv", k, v), k.sum(1))
    return numerator / (denominator.unsqueeze(-1) + ATTENTION_EPS), final
