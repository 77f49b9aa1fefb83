"""Linear attention in C++ against its definition in float64."""

from __future__ import annotations

import pytest
import torch

from scanline.kernels.attention.features import elu_feature_map
from scanline.kernels.attention.naive import naive_linear_attention
from scanline.kernels.native.training import library
from scanline.kernels.native.training.attention import attention, supports_attention
from tests.conftest import assert_close


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vectors", [1, 2, 4, 8])
@pytest.mark.parametrize("T", [1, 2, 37])
def test_outputs_and_gradients_match_the_definition(
    T: int, vectors: int, dtype: torch.dtype, isa: str
) -> None:
    B, H, K = 2, 9, vectors * library.require_library().lanes  # one head more than in a group
    given = [torch.randn(B, T, 3, H, K).to(dtype), torch.randn(3, H, K) / 8]
    exact = [x.double().requires_grad_() for x in given]
    qkv, bias = [x.requires_grad_() for x in given]
    assert supports_attention(qkv, "elu")
    o = attention(qkv, bias)
    q, k, v = (exact[0] + exact[1]).unbind(2)
    expected, _ = naive_linear_attention(elu_feature_map(q), elu_feature_map(k), v)
    assert_close(o, expected, dtype)
    weight = torch.randn_like(expected).to(dtype)
    grads = torch.autograd.grad(o, (qkv, bias), weight)
    exactly = torch.autograd.grad(expected, exact, weight.double())
    for mine, theirs in zip(grads, exactly, strict=True):
        scale = theirs.abs().max()
        assert_close(mine / scale, theirs / scale, dtype)


def test_strided_inputs(isa: str) -> None:
    K = library.require_library().lanes
    qkv, bias = torch.randn(2, 3, 2, 9, K).permute(0, 3, 1, 2, 4), torch.randn(3, 2, K)
    assert not qkv.is_contiguous()
    assert torch.equal(attention(qkv, bias), attention(qkv.contiguous(), bias))


def test_keys_of_minus_infinity_vanish_and_nan_stays_nan(isa: str) -> None:
    K = library.require_library().lanes
    qkv, bias = torch.randn(1, 5, 3, 1, K), torch.zeros(3, 1, K)
    without = qkv[:, [0, 1, 2, 4]]
    qkv[:, 3, 1] = -torch.inf
    assert_close(attention(qkv, bias)[:, [0, 1, 2, 4]], attention(without, bias))
    qkv[:, 1, 0] = torch.nan
    o = attention(qkv, bias)
    assert o.isnan().all(-1).flatten().tolist() == [False, True, False, False, False]
