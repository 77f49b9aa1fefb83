"""Inputs and reference of the linear attention tests."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from scanline.kernels.attention.features import elu_feature_map
from scanline.kernels.attention.naive import AttentionState


def inputs(
    T: int, B: int = 2, H: int = 3, K: int = 5, V: int = 7, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    """Return random q, k and v after the feature map."""
    generator = torch.Generator().manual_seed(T)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    q, k = elu_feature_map(normal(B, T, H, K)), elu_feature_map(normal(B, T, H, K))
    return q, k, normal(B, T, H, V)


def reference_recurrence(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, AttentionState]:
    """Compute eq. 18-20 one image, head and position at a time, with plain products."""
    B, T, H, K = q.shape
    o = torch.zeros(*v.shape, dtype=torch.float64)
    kv = torch.zeros(B, H, K, v.shape[3], dtype=torch.float64)
    z = torch.zeros(B, H, K, dtype=torch.float64)
    q, k, v = q.double(), k.double(), v.double()
    for b in range(B):
        for h in range(H):
            for t in range(T):
                kv[b, h] += torch.outer(k[b, t, h], v[b, t, h])  # eq. 18
                z[b, h] += k[b, t, h]  # eq. 19
                numerator = q[b, t, h] @ kv[b, h]
                o[b, t, h] = numerator / (q[b, t, h] @ z[b, h] + 1e-6)  # eq. 20
    return o, AttentionState(kv, z)


def leaves(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]
