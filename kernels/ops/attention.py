"""Linear attention, computed by Triton kernels, by C++ or in plain PyTorch."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from scanline.kernels.attention.chunked import torch_linear_attention
from scanline.kernels.attention.features import features
from scanline.kernels.attention.naive import AttentionState, check_shapes
from scanline.kernels.constants import FeatureMap
from scanline.kernels.cuda.available import MAX_HEAD_SIZE, triton_available
from scanline.kernels.native.training.attention import (
    FEATURE_MAP,
    attention,
    supports_attention,
)
from scanline.kernels.ops.linear import LinearOutput, linear_deferred_bias, linear_with_bias


def uses_triton(q: Tensor, v: Tensor) -> bool:
    """Return True if ``linear_attention`` runs Triton kernels for these tensors.

    The kernels support float32, float16 and bfloat16 and heads of 16 to 64 features (after a
    ``random`` feature map, which has four per input feature), on an NVIDIA GPU of compute
    capability 8.0 or higher with Triton installed.
    """
    return (
        q.dtype != torch.float64
        and min(q.shape[3], v.shape[3]) >= 16
        and max(q.shape[3], v.shape[3]) <= MAX_HEAD_SIZE
        and triton_available(q.device)
    )


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = True,
    lengths: Tensor | None = None,
) -> tuple[Tensor, AttentionState]:
    """Compute eq. 9-12 in time and memory linear in T, with gradients by eq. 13-15.

    Causal attention runs as Triton kernels if ``uses_triton``, otherwise in PyTorch. Sums and the
    state are float32 whatever the inputs' dtype, or float64 for float64 inputs. Gradients flow from
    ``o`` only. Double backward of causal attention raises an error; ``naive_linear_attention``
    supports it.

    Args:
        q: Queries ``[B, T, H, K]``, after the feature map.
        k: Keys, like ``q``.
        v: Values ``[B, T, H, V]``.
        causal: If False, every position attends to all positions (eq. 6).
        lengths: The number of positions of each row, int64 ``[B]``; T by default.

    Returns:
        ``o`` like ``v``, and each row's state after its last position.

    Raises:
        ValueError: Wrong shapes.
    """
    check_shapes(q, k, v)
    if lengths is not None:
        beyond = torch.arange(k.shape[1], device=k.device) >= lengths.unsqueeze(1)
        k = k.masked_fill(beyond[..., None, None], 0)  # a key of zero adds nothing to the sums
    if causal and uses_triton(q, v):
        from scanline.kernels.cuda.attention import triton_linear_attention  # imports Triton

        return triton_linear_attention(q, k, v)
    return torch_linear_attention(q, k, v, causal)


def packed_implementation(
    heads: Tensor, feature_map: FeatureMap
) -> Literal["Triton", "C++", "PyTorch"]:
    """Return what computes ``packed_linear_attention`` of heads ``[B, T, H, K]``."""
    if feature_map == "elu" and uses_triton(heads, heads):
        return "Triton"
    return "C++" if supports_attention(heads, feature_map) else "PyTorch"


def packed_linear_attention(
    qkv: Tensor, bias: Tensor | None, feature_map: FeatureMap, directions: Tensor | None = None
) -> Tensor:
    """Compute causal ``linear_attention`` of q, k and v in one tensor.

    ``packed_implementation`` chooses the kernels. Its PyTorch is ``linear_attention``, which may
    still run Triton kernels after the feature map.

    Args:
        qkv: Queries, keys and values ``[B, T, 3, H, K]``, before the feature map.
        bias: Bias ``[3, H, K]`` to add to ``qkv``; None if already added.
        feature_map: Name of the feature map.
        directions: Directions of the feature maps ``random`` and ``fourier``.

    Returns:
        ``o: [B, T, H, K]``.
    """
    implementation = packed_implementation(qkv[:, :, 0], feature_map)
    if implementation == "C++":
        if bias is None:
            bias = qkv.new_zeros(qkv.shape[2:])
        return attention(qkv, bias.float())
    qkv = qkv if bias is None else qkv + bias.to(qkv.dtype)
    if implementation == "Triton":
        from scanline.kernels.cuda.attention import triton_packed_attention  # imports Triton

        return triton_packed_attention(qkv)
    q, k, v = qkv.unbind(2)
    q, k = features(q, feature_map, directions), features(k, feature_map, directions)
    return linear_attention(q, k, v)[0]


def projected_linear_attention(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    n_heads: int,
    feature_map: FeatureMap,
    directions: Tensor | None = None,
) -> Tensor:
    """Compute causal ``linear_attention`` of linear maps of ``x``.

    Args:
        x: Input ``[B, T, D]``.
        weight: Weights of the query, key and value maps ``[3 H K, D]``.
        bias: Their biases ``[3 H K]``.
        n_heads: Number of heads H.
        feature_map: Name of the feature map.
        directions: Directions of the feature maps ``random`` and ``fourier``.

    Returns:
        ``o: [B, T, H, K]``.
    """
    if feature_map == FEATURE_MAP and x.device.type == "cpu":  # attention in C++ adds the bias
        product = linear_deferred_bias(x, weight, bias)
    else:
        product = LinearOutput(linear_with_bias(x, weight, bias))
    heads = (3, n_heads, len(bias) // (3 * n_heads))
    pending_bias = None if product.bias is None else product.bias.view(heads)
    qkv = product.x.view(*product.x.shape[:-1], *heads)
    return packed_linear_attention(qkv, pending_bias, feature_map, directions)
