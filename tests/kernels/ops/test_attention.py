"""Linear attention in chunks against its definition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from scanline.kernels.attention.features import elu_feature_map
from scanline.kernels.attention.naive import (
    AttentionState,
    naive_linear_attention,
)
from scanline.kernels.ops.attention import linear_attention
from tests.conftest import assert_close
from tests.kernels.attention.fixtures import inputs, leaves, reference_recurrence

LENGTHS = (1, 2, 31, 32, 33, 65, 97)


@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("chunk", [1, 2, 3, 32, 200])
@pytest.mark.parametrize("T", LENGTHS)
def test_chunked_equals_naive_with_gradients(T: int, chunk: int, with_state: bool) -> None:
    """Compare outputs, and gradients of all five inputs through the output and the final state."""
    q, k, v, state = inputs(T)
    results = []
    generator = torch.Generator().manual_seed(1)
    weights = [
        torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in (v, state.kv, state.z)
    ]
    for form in (naive_linear_attention, linear_attention):
        wanted = leaves((q, k, v, *state) if with_state else (q, k, v))
        initial = AttentionState(wanted[3], wanted[4]) if with_state else None
        options: dict[str, Any] = {"chunk": chunk} if form is linear_attention else {}
        o, final = form(wanted[0], wanted[1], wanted[2], initial, **options)
        outputs = (o, final.kv, final.z)
        loss = torch.stack([(w * x).sum() for w, x in zip(weights, outputs, strict=True)]).sum()
        results.append((*outputs, *torch.autograd.grad(loss, wanted)))
    for naive, chunked in zip(*results, strict=True):
        assert chunked.shape == naive.shape
        assert_close(chunked, naive)


@pytest.mark.parametrize("through", ["o", "kv", "z"])
def test_gradients_through_one_output_alone(through: str) -> None:
    q, k, v, state = inputs(33)
    results = []
    for form in (naive_linear_attention, linear_attention):
        wanted = leaves((q, k, v, *state))
        o, final = form(wanted[0], wanted[1], wanted[2], AttentionState(wanted[3], wanted[4]))
        output = {"o": o, "kv": final.kv, "z": final.z}[through]
        results.append(
            torch.autograd.grad(
                output.square().sum(), wanted, allow_unused=True, materialize_grads=True
            )
        )
    for naive, chunked in zip(*results, strict=True):
        assert_close(chunked, naive)


@pytest.mark.parametrize("T", [1, 5])
def test_gradients_equal_finite_differences(T: int) -> None:
    q, k, v, state = inputs(T, B=1, H=2, K=2, V=1 + T // 3)

    def attend(q: Tensor, k: Tensor, v: Tensor, kv: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        o, final = linear_attention(q, k, v, AttentionState(kv, z), chunk=2)
        return o, *final

    assert torch.autograd.gradcheck(attend, tuple(leaves((q, k, v, *state))))


def test_double_backward_raises() -> None:
    q, k, v = leaves(inputs(4)[:3])
    o, _ = linear_attention(q, k, v)
    for loss in (o.square().sum(), o.sum()):  # the gradient depends on o, or not
        (first,) = torch.autograd.grad(loss, q, create_graph=True)
        with pytest.raises(RuntimeError, match="double backward is not supported"):
            torch.autograd.grad(first.sum() + q.sum(), q, retain_graph=True)
        with pytest.raises(RuntimeError, match="double backward is not supported"):
            first.sum().backward(retain_graph=True)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("form", [naive_linear_attention, linear_attention])
@pytest.mark.parametrize("cut", [0, 1, 32, 40, 64, 65])
def test_resuming_from_a_state_equals_one_pass(cut: int, form: object) -> None:
    assert callable(form)
    q, k, v, state = inputs(65)
    whole, final = form(q, k, v, state)
    first, between = form(q[:, :cut], k[:, :cut], v[:, :cut], state)
    second, resumed = form(q[:, cut:], k[:, cut:], v[:, cut:], between)
    assert_close(torch.cat([first, second], 1), whole)
    assert_close(resumed.kv, final.kv)
    assert_close(resumed.z, final.z)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("T", [1, 33, 97])
def test_sums_stay_float32_for_every_input_dtype(T: int, dtype: torch.dtype) -> None:
    """Half-precision inputs give the results of float32 arithmetic on the same numbers."""
    q, k, v, state = inputs(T, dtype=dtype)
    o, final = linear_attention(q, k, v, state)
    expected_o, expected = reference_recurrence(q, k, v, state)
    assert o.dtype == dtype
    assert final.kv.dtype == final.z.dtype == torch.float32
    assert_close(o.double(), expected_o, dtype)
    assert_close(final.kv.double(), expected.kv, torch.float32)  # not the inputs' own precision
    assert_close(final.z.double(), expected.z, torch.float32)


def test_gradients_have_the_inputs_dtype() -> None:
    q, k, v = leaves(inputs(33, dtype=torch.bfloat16)[:3])
    o, _ = linear_attention(q, k, v)
    o.float().sum().backward()  # type: ignore[no-untyped-call]
    for tensor in (q, k, v):
        assert tensor.grad is not None
        assert tensor.grad.dtype == torch.bfloat16


def test_autocast_does_not_change_the_sums() -> None:
    q, k, v, state = inputs(65, dtype=torch.float32)
    plain, final = linear_attention(q, k, v, state)
    with torch.autocast("cpu", torch.bfloat16):
        under, under_final = linear_attention(q, k, v, state)
    assert torch.equal(plain, under)
    assert torch.equal(final.kv, under_final.kv)


@pytest.mark.parametrize("form", [naive_linear_attention, linear_attention])
@pytest.mark.parametrize("t", [0, 31, 32, 50])
def test_causality(t: int, form: object) -> None:
    """A change at position t changes the outputs from t on, and none before."""
    assert callable(form)
    q, k, v, _ = inputs(65)
    before, _ = form(q, k, v)
    k[:, t] += 1
    v[:, t] -= 1
    after, _ = form(q, k, v)
    assert_close(after[:, :t], before[:, :t])
    assert (after[:, t:] - before[:, t:]).abs().amin(dim=1).max() > 1e-6
    assert not torch.allclose(after[:, t], before[:, t])


def test_rows_and_heads_are_independent() -> None:
    q, k, v, state = inputs(40)
    o, final = linear_attention(q, k, v, state)
    for b in range(2):
        for h in range(3):
            where = (slice(b, b + 1), slice(None), slice(h, h + 1))
            alone = AttentionState(state.kv[b : b + 1, h : h + 1], state.z[b : b + 1, h : h + 1])
            part, rest = linear_attention(q[where], k[where], v[where], alone)
            assert_close(part, o[where])
            assert_close(rest.kv, final.kv[b : b + 1, h : h + 1])


@pytest.mark.parametrize("T", [3, 33])
def test_zero_keys_leave_the_state_unchanged(T: int) -> None:
    """Padding with zero keys must not change the state."""
    q, k, v, state = inputs(T)
    _, final = linear_attention(q, k, v, state)
    k_padded = torch.cat([k, torch.zeros_like(k)], 1)
    _, padded = linear_attention(torch.cat([q, q], 1), k_padded, torch.cat([v, 1e3 * v], 1), state)
    assert_close(padded.kv, final.kv)
    assert_close(padded.z, final.z)


def test_inputs_are_not_modified() -> None:
    q, k, v, state = inputs(33)
    copies = [x.clone() for x in (q, k, v, *state)]
    linear_attention(q, k, v, state, chunk=8)
    for tensor, copy in zip((q, k, v, *state), copies, strict=True):
        assert torch.equal(tensor, copy)


def test_strided_inputs_give_the_same_result() -> None:
    q, k, v, state = inputs(33)
    o, _ = linear_attention(q, k, v, state)
    strided = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    assert not strided[0].is_contiguous()
    assert_close(linear_attention(strided[0], strided[1], strided[2], state)[0], o)


@pytest.mark.parametrize("empty", range(4), ids="BHKV")
@pytest.mark.parametrize("causal", [True, False])
def test_empty_batch_heads_or_features(empty: int, causal: bool) -> None:
    B, H, K, V = (0 if place == empty else 2 for place in range(4))
    q, k, v, state = inputs(5, B, H, K, V)
    q, k, v = leaves((q, k, v))
    o, final = linear_attention(q, k, v, state, causal=causal)
    grads = torch.autograd.grad(o.sum() + final.kv.sum() + final.z.sum(), (q, k, v))
    assert (o.shape, final.kv.shape, final.z.shape) == (v.shape, state.kv.shape, state.z.shape)
    assert [grad.shape for grad in grads] == [q.shape, k.shape, v.shape]


def test_zero_positions_keep_the_state() -> None:
    q, k, v, state = inputs(0)
    o, final = linear_attention(q, k, v, state)
    assert o.shape == v.shape
    assert torch.equal(final.kv, state.kv)
    assert torch.equal(final.z, state.z)


def test_outputs_are_weighted_averages() -> None:
    """With positive features, outputs lie between the minimum and maximum value so far."""
    q, k, v, _ = inputs(50)
    o, _ = linear_attention(q, k, v, eps=0.0)
    highest, lowest = v.cummax(1).values, v.cummin(1).values
    assert (o <= highest + 1e-9).all()
    assert (o >= lowest - 1e-9).all()
    assert_close(o[:, 0], v[:, 0])


@pytest.mark.parametrize("causal", [True, False])
def test_eps_is_added_to_the_denominator(causal: bool) -> None:
    q, k, v, _ = inputs(1)
    o, _ = linear_attention(q, k, v, eps=0.5, causal=causal)
    dot = (q * k).sum(-1, keepdim=True)
    assert_close(o, v * dot / (dot + 0.5))


@pytest.mark.parametrize("form", [naive_linear_attention, linear_attention])
@pytest.mark.parametrize(
    ("q", "k", "v", "kv", "z", "message"),
    [
        ((2, 5, 3), (2, 5, 3), (2, 5, 3), None, None, "q and k must both be"),
        ((2, 5, 3, 4), (2, 5, 3, 6), (2, 5, 3, 4), None, None, "q and k must both be"),
        ((2, 5, 3, 4), (2, 6, 3, 4), (2, 5, 3, 4), None, None, "q and k must both be"),
        ((2, 5, 3, 4), (2, 5, 3, 4), (2, 6, 3, 4), None, None, "v must be"),
        ((2, 5, 3, 4), (2, 5, 3, 4), (2, 5, 1, 4), None, None, "v must be"),
        ((2, 5, 3, 4), (2, 5, 3, 4), (2, 5, 3), None, None, "v must be"),
        ((2, 5, 3, 4), (2, 5, 3, 4), (2, 5, 3, 6), (2, 3, 6, 4), (2, 3, 4), "initial state"),
        ((2, 5, 3, 4), (2, 5, 3, 4), (2, 5, 3, 6), (1, 3, 4, 6), (1, 3, 4), "initial state"),
        ((2, 5, 3, 4), (2, 5, 3, 4), (2, 5, 3, 6), (2, 3, 4, 6), (2, 3, 6), "initial state"),
    ],
)
def test_invalid_shapes_raise(
    form: object,
    q: tuple[int, ...],
    k: tuple[int, ...],
    v: tuple[int, ...],
    kv: tuple[int, ...] | None,
    z: tuple[int, ...] | None,
    message: str,
) -> None:
    assert callable(form)
    state = None if kv is None or z is None else AttentionState(torch.ones(kv), torch.ones(z))
    with pytest.raises(ValueError, match=message):
        form(torch.ones(q), torch.ones(k), torch.ones(v), state)


@pytest.mark.parametrize("form", [naive_linear_attention, linear_attention])
def test_integer_values_raise(form: object) -> None:
    assert callable(form)
    ones = torch.ones(1, 2, 1, 4)
    with pytest.raises(ValueError, match="must hold floats, not"):
        form(ones, ones, ones.int())


@pytest.mark.parametrize("chunk", [0, -1])
def test_invalid_chunk_size_raises(chunk: int) -> None:
    q, k, v, _ = inputs(4)
    with pytest.raises(ValueError, match="chunk must be at least 1"):
        linear_attention(q, k, v, chunk=chunk)


def saved_bytes(T: int) -> int:
    """Return the bytes that a call saves for its backward pass, counting each storage once."""
    q, k, v = leaves(inputs(T, K=16, V=24, dtype=torch.float32)[:3])
    storages: dict[int, int] = {}

    def record(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        o, final = linear_attention(q, k, v)
    assert o.requires_grad
    assert final.kv.requires_grad
    return sum(storages.values())


def test_memory_per_position_is_inputs_and_outputs_only() -> None:
    B, H, K, V = 2, 3, 16, 24
    short, long = saved_bytes(64), saved_bytes(256)
    per_position = (long - short) / 192
    assert per_position == 4 * B * H * (K + K + V + V + 1)  # q, k, v, o and the denominators
    assert short - 64 * per_position == 4 * B * H * K * (V + 1)  # one state, the initial one


def test_feature_map_is_elu_plus_one() -> None:
    x = torch.linspace(-30, 30, 601, dtype=torch.float64)
    expected = torch.nn.functional.elu(x) + 1
    assert_close(elu_feature_map(x), expected)
    assert (elu_feature_map(torch.tensor([-80.0, 0.0, 80.0])) > 0).all()  # elu(-80) + 1 is 0
    assert torch.autograd.gradcheck(
        elu_feature_map, torch.randn(9, dtype=torch.float64).requires_grad_()
    )


@pytest.mark.parametrize("form", [naive_linear_attention, linear_attention])
def test_named_feature_map_is_applied_to_queries_and_keys(form: object) -> None:
    assert callable(form)
    _, _, v, state = inputs(40)
    q, k = torch.randn(2, *v.shape[:3], 5, dtype=torch.float64)
    o, final = form(q, k, v, state, feature_map="elu")
    expected_o, expected = form(elu_feature_map(q), elu_feature_map(k), v, state)
    assert torch.equal(o, expected_o)
    assert torch.equal(final.kv, expected.kv)
    with pytest.raises(ValueError, match=r"one of elu, .*, or None, not 'sine'"):
        form(q, k, v, state, feature_map="sine")


def test_keys_of_minus_infinity_have_zero_features() -> None:
    _, _, v, state = inputs(40)
    q, k = torch.randn(2, *v.shape[:3], 5, dtype=torch.float64)
    k = k.requires_grad_()
    later = (torch.arange(40) >= 33)[:, None, None]
    _, final = linear_attention(q, k.masked_fill(later, -torch.inf), v, state, feature_map="elu")
    _, expected = linear_attention(q[:, :33], k[:, :33], v[:, :33], state, feature_map="elu")
    assert_close(final.kv, expected.kv)
    assert_close(final.z, expected.z)
    (gradient,) = torch.autograd.grad(final.kv.sum() + final.z.sum(), k)
    assert (gradient[:, 33:] == 0).all()
    assert gradient[:, :33].isfinite().all()
