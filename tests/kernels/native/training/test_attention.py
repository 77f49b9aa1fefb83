"""Linear attention in C++ against its definition in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from scanline.kernels.attention.naive import AttentionState, naive_linear_attention
from scanline.kernels.native.training import library
from scanline.kernels.native.training.attention import supports_attention
from scanline.kernels.ops.attention import linear_attention
from tests.conftest import assert_close


def tensors(
    T: int, K: int, dtype: torch.dtype = torch.float32
) -> tuple[list[Tensor], list[Tensor]]:
    """Return q, k, v, kv and z that require gradients, and the same in float64."""
    B, H = 2, 9  # one more than a group of heads
    given = [torch.randn(B, T, H, K).to(dtype) for _ in range(3)]
    given += [torch.rand(B, H, K, K), torch.rand(B, H, K) + 1]
    exact = [x.double().requires_grad_() for x in given]
    return [x.requires_grad_() for x in given], exact


def attention_outputs(
    attend: Callable[..., tuple[Tensor, AttentionState]], given: list[Tensor]
) -> tuple[Tensor, ...]:
    q, k, v, kv, z = given
    o, after = attend(q, k, v, AttentionState(kv, z), feature_map="elu")
    return o, *after


def weighted_sum(outputs: tuple[Tensor, ...], weights: list[Tensor]) -> Tensor:
    return torch.stack([(x * w).sum() for x, w in zip(outputs, weights, strict=True)]).sum()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vectors", [1, 2, 4, 8])
@pytest.mark.parametrize("T", [1, 2, 37])
def test_outputs_and_gradients_match_the_definition(
    T: int, vectors: int, dtype: torch.dtype, isa: str
) -> None:
    K = vectors * library.require_library().lanes
    given, exact = tensors(T, K, dtype)
    assert supports_attention(given[0])
    outputs = attention_outputs(linear_attention, given)
    wanted = attention_outputs(naive_linear_attention, exact)
    for mine, theirs in zip(outputs, wanted, strict=True):
        assert_close(mine, theirs, dtype)
    weights = [torch.randn_like(x, dtype=torch.float64).to(dtype) for x in wanted]
    grads = torch.autograd.grad(weighted_sum(outputs, weights), given)
    exactly = torch.autograd.grad(weighted_sum(wanted, [w.double() for w in weights]), exact)
    for mine, theirs in zip(grads, exactly, strict=True):
        scale = theirs.abs().max()
        assert_close(mine / scale, theirs / scale, dtype)


def test_strided_inputs(isa: str) -> None:
    """Queries, keys and values are adjacent at each position."""
    K = library.require_library().lanes
    wide = torch.randn(2, 9, 3 * 2 * K)
    q, k, v = wide.view(2, 9, 3, 2, K).unbind(2)
    assert not q.is_contiguous()
    joint, _ = linear_attention(q, k, v, feature_map="elu")
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    separate, _ = linear_attention(q, k, v, feature_map="elu")
    assert torch.equal(separate, joint)


def test_keys_of_minus_infinity_vanish_and_nan_stays_nan(isa: str) -> None:
    K = library.require_library().lanes
    q, k, v = torch.randn(3, 1, 5, 1, K).unbind()
    k[:, 3:] = -torch.inf
    _, state = linear_attention(q, k, v, feature_map="elu")
    _, shorter = linear_attention(q[:, :3], k[:, :3], v[:, :3], feature_map="elu")
    assert torch.equal(state.kv, shorter.kv)
    assert torch.equal(state.z, shorter.z)
    q[:, 1] = torch.nan
    o, _ = linear_attention(q, k, v, feature_map="elu")
    assert o.isnan().all(-1).flatten().tolist() == [False, True, False, False, False]
