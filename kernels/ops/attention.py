"""Linear attention, computed by Triton kernels, by C++ or in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from scanline.kernels.attention.chunked import torch_linear_attention
from scanline.kernels.attention.features import FeatureMap, features
from scanline.kernels.attention.naive import CHUNK, EPS, AttentionState, check_shapes
from scanline.kernels.cuda.available import MAX_HEAD_SIZE, triton_available
from scanline.kernels.native.training.attention import attention, supports_attention
from scanline.kernels.ops.linear import LinearOutput, linear_deferred_bias, linear_with_bias


def uses_triton(q: Tensor, v: Tensor, chunk: int = CHUNK) -> bool:
    """Return True if ``linear_attention`` runs Triton kernels for these tensors and chunk size.

    The kernels support float32, float16 and bfloat16 and heads of 16 to 64 features (after a
    ``random`` feature map, which has four per input feature), on an NVIDIA GPU of compute
    capability 8.0 or higher with Triton installed. A ``chunk`` other than the default selects
    PyTorch.
    """
    return (
        q.dtype != torch.float64
        and min(q.shape[3], v.shape[3]) >= 16
        and max(q.shape[3], v.shape[3]) <= MAX_HEAD_SIZE
        and chunk == CHUNK
        and triton_available(q.device)
    )


def _initial_state(q: Tensor, given: AttentionState | None) -> tuple[Tensor, Tensor]:
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
    """Compute eq. 9-12 in time and memory linear in T, with gradients by eq. 13-15.

    Causal attention runs as Triton kernels if ``uses_triton``, otherwise in C++ if
    ``supports_attention``, otherwise in PyTorch. Sums and states are float32 whatever the inputs'
    dtype, or float64 for float64 inputs. Gradients flow from ``o`` and the final state to q, k, v
    and the initial state. Double backward of causal attention raises an error;
    ``naive_linear_attention`` supports it.

    Args:
        q: Queries ``[B, T, H, K]``, before the feature map if one is named.
        k: Keys, like ``q``.
        v: Values ``[B, T, H, V]``.
        initial_state: State before the first position; zero by default.
        eps: ε of the denominator.
        chunk: Positions per chunk in PyTorch.
        feature_map: Name of the feature map to apply; None if already applied.
        directions: Directions of the feature maps ``random`` and ``fourier``.
        causal: If False, every position attends to all positions (eq. 6).

    Returns:
        ``o`` like ``v``, and the final state.

    Raises:
        ValueError: Wrong shapes or an unknown feature map.
    """
    check_shapes(q, k, v)
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, not {chunk}")
    if feature_map != "elu":  # the kernels apply this one themselves
        q, k = features(q, feature_map, directions), features(k, feature_map, directions)
        feature_map = None
    check_shapes(q, k, v, initial_state)
    if causal and uses_triton(q, v, chunk):
        from scanline.kernels.cuda.attention import triton_linear_attention  # imports Triton

        return triton_linear_attention(q, k, v, initial_state, eps, feature_map)
    same_type = q.shape == v.shape and q.dtype == v.dtype
    if causal and feature_map == "elu" and same_type and supports_attention(q):
        kv, z = _initial_state(q, initial_state)
        qkv = torch.stack((q, k.to(q.dtype), v), 2)
        o, kv, z, _ = attention(qkv, kv.new_zeros(qkv.shape[2:]), kv, z, eps)
        return o, AttentionState(kv, z)
    q, k = features(q, feature_map), features(k, feature_map)
    B, _, H, K = q.shape
    V = v.shape[3]
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    if initial_state is None:
        initial = q.new_zeros(B, H, K, V + 1, dtype=dtype)
    else:
        initial = torch.cat([initial_state.kv, initial_state.z.unsqueeze(-1)], -1).to(dtype)
    with torch.autocast(q.device.type, enabled=False):
        o, final = torch_linear_attention(
            q.to(dtype), k.to(dtype), v.to(dtype), initial, eps, chunk, causal
        )
    return o.to(v.dtype), AttentionState(final[..., :-1], final[..., -1])


def packed_linear_attention(
    qkv: Tensor, bias: Tensor | None, feature_map: FeatureMap, directions: Tensor | None = None
) -> Tensor:
    """Compute causal ``linear_attention`` of q, k and v in one tensor, without an initial state.

    Args:
        qkv: Queries, keys and values ``[B, T, 3, H, K]``, before the feature map.
        bias: Bias ``[3, H, K]`` to add to ``qkv``; None if already added.
        feature_map: Name of the feature map.
        directions: Directions of the feature maps ``random`` and ``fourier``.

    Returns:
        ``o: [B, T, H, K]``.
    """
    q, _, v = qkv.unbind(2)
    on_device = feature_map == "elu" and uses_triton(q, v, CHUNK)
    if feature_map == "elu" and supports_attention(qkv) and not on_device:
        if bias is None:
            bias = qkv.new_zeros(qkv.shape[2:])
        o: Tensor = attention(qkv, bias.float(), *_initial_state(q, None), EPS)[0]
        return o
    qkv = qkv if bias is None else qkv + bias.to(qkv.dtype)
    if on_device:
        from scanline.kernels.cuda.attention import triton_packed_attention  # imports Triton

        return triton_packed_attention(qkv, feature_map)
    q, k, v = qkv.unbind(2)
    return linear_attention(q, k, v, feature_map=feature_map, directions=directions)[0]


def projected_linear_attention(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    n_heads: int,
    feature_map: FeatureMap,
    directions: Tensor | None = None,
) -> Tensor:
    """Compute causal ``linear_attention`` of linear maps of ``x``, without an initial state.

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
    if feature_map == "elu" and x.device.type == "cpu":  # attention in C++ adds the bias
        product = linear_deferred_bias(x, weight, bias)
    else:
        product = LinearOutput(linear_with_bias(x, weight, bias))
    heads = (3, n_heads, len(bias) // (3 * n_heads))
    pending_bias = None if product.bias is None else product.bias.view(heads)
    qkv = product.x.view(*product.x.shape[:-1], *heads)
    return packed_linear_attention(qkv, pending_bias, feature_map, directions)
