"""Linear attention in chunks against its definition."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from scanline.kernels.attention.chunked import torch_linear_attention
from scanline.kernels.attention.features import elu_feature_map
from scanline.kernels.attention.naive import naive_linear_attention
from scanline.kernels.ops.attention import linear_attention
from tests.conftest import assert_close
from tests.kernels.attention.fixtures import inputs, leaves, reference_recurrence

LENGTHS = (1, 2, 31, 32, 33, 65, 97)


@pytest.mark.parametrize("chunk", [1, 2, 3, 32, 200])
@pytest.mark.parametrize("T", LENGTHS)
def test_chunked_equals_naive_with_gradients(T: int, chunk: int) -> None:
    results = []
    for form in (naive_linear_attention, partial(torch_linear_attention, chunk=chunk)):
        given = leaves(inputs(T))
        q, k, v = given
        o, final = form(q, k, v)
        weight = torch.randn(o.shape, generator=torch.Generator().manual_seed(1), dtype=o.dtype)
        results.append((o, *final, *torch.autograd.grad(o, given, weight)))
    for naive, chunked in zip(*results, strict=True):
        assert chunked.shape == naive.shape
        assert_close(chunked, naive)


@pytest.mark.parametrize("T", [1, 5])
def test_gradients_equal_finite_differences(T: int) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch_linear_attention(q, k, v, chunk=2)[0]

    assert torch.autograd.gradcheck(attend, tuple(leaves(inputs(T, 1, 2, 2, 1 + T // 3))))


def test_double_backward_raises() -> None:
    q, k, v = leaves(inputs(4))
    o, _ = linear_attention(q, k, v)
    with pytest.raises(RuntimeError, match="double backward is not supported"):
        torch.autograd.grad(o.square().sum(), q, create_graph=True)


def test_final_state_has_no_gradient() -> None:
    q, k, v = leaves(inputs(4))
    _, final = linear_attention(q, k, v)
    assert not final.kv.requires_grad
    assert not final.z.requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("T", [1, 33, 97])
def test_sums_stay_float32_for_every_input_dtype(T: int, dtype: torch.dtype) -> None:
    """Half-precision inputs give the results of float32 arithmetic on the same numbers."""
    q, k, v = inputs(T, dtype=dtype)
    o, final = linear_attention(q, k, v)
    expected_o, expected = reference_recurrence(q, k, v)
    assert o.dtype == dtype
    assert final.kv.dtype == final.z.dtype == torch.float32
    assert_close(o.double(), expected_o, dtype)
    assert_close(final.kv.double(), expected.kv, torch.float32)  # not the inputs' own precision
    assert_close(final.z.double(), expected.z, torch.float32)


def test_gradients_have_the_inputs_dtype() -> None:
    q, k, v = leaves(inputs(33, dtype=torch.bfloat16))
    o, _ = linear_attention(q, k, v)
    o.float().sum().backward()  # type: ignore[no-untyped-call]
    for tensor in (q, k, v):
        assert tensor.grad is not None
        assert tensor.grad.dtype == torch.bfloat16


def test_autocast_does_not_change_the_sums() -> None:
    q, k, v = inputs(65, dtype=torch.float32)
    plain, final = linear_attention(q, k, v)
    with torch.autocast("cpu", torch.bfloat16):
        under, under_final = linear_attention(q, k, v)
    assert torch.equal(plain, under)
    assert torch.equal(final.kv, under_final.kv)


@pytest.mark.parametrize("causal", [True, False])
def test_lengths_end_each_row(causal: bool) -> None:
    q, k, v = inputs(40)
    lengths = torch.tensor([33, 7])
    o, final = linear_attention(q, k, v, causal=causal, lengths=lengths)
    for row, length in enumerate(lengths.tolist()):
        part = (slice(row, row + 1), slice(length))
        expected, state = linear_attention(q[part], k[part], v[part], causal=causal)
        assert_close(o[part], expected)
        assert_close(final.kv[row], state.kv[0])
        assert_close(final.z[row], state.z[0])


def test_inputs_are_not_modified() -> None:
    q, k, v = inputs(33)
    copies = [x.clone() for x in (q, k, v)]
    linear_attention(q, k, v)
    for tensor, copy in zip((q, k, v), copies, strict=True):
        assert torch.equal(tensor, copy)


def test_strided_inputs_give_the_same_result() -> None:
    q, k, v = inputs(33)
    o, _ = linear_attention(q, k, v)
    strided = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    assert not strided[0].is_contiguous()
    assert_close(linear_attention(strided[0], strided[1], strided[2])[0], o)


@pytest.mark.parametrize("empty", range(4), ids="BHKV")
@pytest.mark.parametrize("causal", [True, False])
def test_empty_batch_heads_or_features(empty: int, causal: bool) -> None:
    B, H, K, V = (0 if place == empty else 2 for place in range(4))
    q, k, v = leaves(inputs(5, B, H, K, V))
    o, final = linear_attention(q, k, v, causal=causal)
    grads = torch.autograd.grad(o.sum(), (q, k, v))
    assert (o.shape, final.kv.shape, final.z.shape) == (v.shape, (B, H, K, V), (B, H, K))
    assert [grad.shape for grad in grads] == [q.shape, k.shape, v.shape]


def test_state_of_zero_positions_is_zero() -> None:
    q, k, v = inputs(0)
    o, final = linear_attention(q, k, v)
    assert o.shape == v.shape
    assert torch.equal(final.kv, torch.zeros(2, 3, 5, 7, dtype=torch.float64))
    assert torch.equal(final.z, torch.zeros(2, 3, 5, dtype=torch.float64))


@pytest.mark.parametrize("causal", [True, False])
def test_eps_is_added_to_the_denominator(causal: bool) -> None:
    q, k, v = inputs(1)
    q = 1e-6 * q
    o, _ = linear_attention(q, k, v, causal=causal)
    dot = (q * k).sum(-1, keepdim=True)
    assert_close(o, v * dot / (dot + 1e-6))


@pytest.mark.parametrize("form", [naive_linear_attention, linear_attention])
@pytest.mark.parametrize(
    ("q", "k", "v", "message"),
    [
        ((2, 5, 3), (2, 5, 3), (2, 5, 3), "q and k must both be"),
        ((2, 5, 3, 4), (2, 5, 3, 6), (2, 5, 3, 4), "q and k must both be"),
        ((2, 5, 3, 4), (2, 6, 3, 4), (2, 5, 3, 4), "q and k must both be"),
        ((2, 5, 3, 4), (2, 5, 3, 4), (2, 6, 3, 4), "v must be"),
        ((2, 5, 3, 4), (2, 5, 3, 4), (2, 5, 1, 4), "v must be"),
        ((2, 5, 3, 4), (2, 5, 3, 4), (2, 5, 3), "v must be"),
    ],
)
def test_invalid_shapes_raise(
    form: object, q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], message: str
) -> None:
    assert callable(form)
    with pytest.raises(ValueError, match=message):
        form(torch.ones(q), torch.ones(k), torch.ones(v))


@pytest.mark.parametrize("form", [naive_linear_attention, linear_attention])
def test_integer_values_raise(form: object) -> None:
    assert callable(form)
    ones = torch.ones(1, 2, 1, 4)
    with pytest.raises(ValueError, match="must hold floats, not"):
        form(ones, ones, ones.int())


def saved_bytes(T: int) -> int:
    """Return the bytes that a call saves for its backward pass, counting each storage once."""
    q, k, v = leaves(inputs(T, K=16, V=24, dtype=torch.float32))
    storages: dict[int, int] = {}

    def record(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        o, _ = linear_attention(q, k, v)
    assert o.requires_grad
    return sum(storages.values())


def test_memory_per_position_is_inputs_and_outputs_only() -> None:
    B, H, K, V = 2, 3, 16, 24
    short, long = saved_bytes(64), saved_bytes(256)
    per_position = (long - short) / 192
    assert per_position == 4 * B * H * (K + K + V + V + 1)  # q, k, v, o and the denominators
    assert short == 64 * per_position


def test_feature_map_is_elu_plus_one() -> None:
    x = torch.linspace(-30, 30, 601, dtype=torch.float64)
    expected = torch.nn.functional.elu(x) + 1
    assert_close(elu_feature_map(x), expected)
    assert (elu_feature_map(torch.tensor([-80.0, 0.0, 80.0])) > 0).all()  # elu(-80) + 1 is 0
    assert torch.autograd.gradcheck(
        elu_feature_map, torch.randn(9, dtype=torch.float64).requires_grad_()
    )


def test_keys_of_minus_infinity_have_zero_features() -> None:
    _, _, v = inputs(40)
    q, k = torch.randn(2, *v.shape[:3], 5, dtype=torch.float64)
    k = k.requires_grad_()
    later = (torch.arange(40) >= 33)[:, None, None]
    phi_q, phi_k = elu_feature_map(q), elu_feature_map(k.masked_fill(later, -torch.inf))
    o, final = linear_attention(phi_q, phi_k, v)
    _, expected = linear_attention(phi_q[:, :33], phi_k[:, :33], v[:, :33])
    assert_close(final.kv, expected.kv)
    assert_close(final.z, expected.z)
    (gradient,) = torch.autograd.grad(o.sum(), k)
    assert (gradient[:, 33:] == 0).all()
    assert gradient[:, :33].isfinite().all()
