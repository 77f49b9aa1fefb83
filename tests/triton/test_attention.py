"""Tests of the Triton attention, in the interpreter or on a GPU.

The interpreter does not emulate bfloat16 arithmetic, so it tests float32 only.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from scanline.kernels.attention.features import elu_feature_map
from scanline.kernels.attention.naive import naive_linear_attention
from scanline.kernels.cuda import attention as triton_attention
from scanline.kernels.cuda.attention import triton_linear_attention, triton_packed_attention
from tests.conftest import assert_close
from tests.triton.fixtures import INTERPRETED
from tests.triton.targets import Target, inputs, leaves


def features(target: Target, T: int, **sizes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return random q, k and v after the feature map."""
    q, k, v = inputs(target, T, **sizes)
    return elu_feature_map(q), elu_feature_map(k), v


@pytest.mark.parametrize(
    ("T", "K", "V"),
    [
        (1, 16, 16), (32, 32, 32), (65, 64, 64), (33, 17, 63), (34, 64, 16), (31, 20, 24),
        *(
            pytest.param(*sizes, marks=pytest.mark.broad)
            for sizes in ((2, 32, 32), (97, 32, 32), (65, 20, 24), (65, 16, 16), (65, 32, 48))
        ),
    ],
)  # fmt: skip
def test_equals_naive_with_gradients(target: Target, T: int, K: int, V: int) -> None:
    """Compare o, the final state and the gradients with the definition in float64."""
    given = features(target, T, B=2 if K + V < 100 else 1, K=K, V=V)
    results = []
    for form, dtype in ((naive_linear_attention, torch.float64), (triton_linear_attention, None)):
        x = leaves(given, dtype)
        o, final = form(x[0], x[1], x[2])
        weight = torch.randn(o.shape, generator=torch.Generator().manual_seed(1)).to(o.device)
        gradients = torch.autograd.grad((weight * o.double()).sum(), x)
        results.append((o, *final, *gradients))
    for i, (expected, actual) in enumerate(zip(*results, strict=True)):
        # The final state is float32. Gradients have the precision of o's dtype.
        assert_close(actual.double(), expected, torch.float32 if i in (1, 2) else target.dtype)
    dtypes = [x.dtype for x in results[1]]
    assert dtypes == [target.dtype, torch.float32, torch.float32, *(x.dtype for x in given)]


@pytest.mark.parametrize(
    ("T", "K", "wide"),
    [
        (1, 16, False), (33, 32, False), (33, 64, False), (31, 20, False),
        (1, 16, True), (64, 32, True), (65, 64, True), (33, 20, True),
        *(
            pytest.param(*sizes, marks=pytest.mark.broad)
            for sizes in ((97, 64, False), (64, 32, False), (33, 32, True), (97, 64, True))
        ),
    ],
)  # fmt: skip
def test_packed_equals_naive_with_its_gradient(
    target: Target, T: int, K: int, wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if wide:  # bf16 tile sizes with float32 arithmetic, for the interpreter
        options = triton_attention._launch_options(torch.bfloat16, K, K, True, (9, 0))
        options = options._replace(constants=options.constants | {"PRECISION": "tf32x3"})
        monkeypatch.setattr(triton_attention, "_launch_options", lambda *_: options)
    parts = inputs(target, T, K=K, V=K)
    results = []
    for dtype in (torch.float64, None):
        (qkv,) = leaves([torch.stack(parts, 2)], dtype)
        if dtype is None:
            o = triton_packed_attention(qkv)
        else:
            q, k, v = qkv.unbind(2)
            o, _ = naive_linear_attention(elu_feature_map(q), elu_feature_map(k), v)
        weight = torch.randn(o.shape, generator=torch.Generator().manual_seed(1)).to(o.device)
        (gradient,) = torch.autograd.grad((weight * o.double()).sum(), qkv)
        results.append((o, gradient))
    for expected, actual in zip(*results, strict=True):
        assert actual.dtype == target.dtype
        assert_close(actual.double(), expected, target.dtype)


def test_gradient_has_the_range_of_its_tensors_dtype(target: Target) -> None:
    q, k, v = features(target, 33)
    x = [*leaves((q, k), torch.float16), *leaves((v,), torch.float32)]
    o, _ = triton_linear_attention(x[0], x[1], x[2])
    gradients = torch.autograd.grad(o, x, torch.full_like(o, 2.0**17))  # out of float16's range
    assert [gradient.dtype for gradient in gradients] == [y.dtype for y in x]
    assert gradients[2].isfinite().all()


def test_state_of_an_empty_sequence_is_zero(target: Target) -> None:
    q, k, v = features(target, 0)
    o, final = triton_linear_attention(q, k, v)
    assert o.shape == v.shape
    assert torch.equal(final.kv, torch.zeros_like(final.kv))
    assert torch.equal(final.z, torch.zeros_like(final.z))


def test_final_state_has_no_gradient(target: Target) -> None:
    _, final = triton_linear_attention(*leaves(features(target, 4)))
    assert not final.kv.requires_grad
    assert not final.z.requires_grad


sizes = pytest.mark.parametrize(
    ("T", "K", "V"),
    [(33, 20, 24), (1, 16, 16), pytest.param(64, 32, 17, marks=pytest.mark.broad)],
)


def in_nan(x: Tensor) -> Tensor:
    """Return a copy that is a strided view into a larger buffer of NaN."""
    B, T, H, X = x.shape
    buffer = x.new_full((B + 2, H + 2, T + 2, X + 16), torch.nan).transpose(1, 2)
    view = buffer[1:-1, 1:-1, 1:-1, 5 : 5 + X]
    return view.copy_(x)


@sizes
def test_strided_views_and_no_reads_out_of_bounds(target: Target, T: int, K: int, V: int) -> None:
    """Strided views surrounded by NaN give the results and gradients of copies."""
    q, k, v = features(target, T, K=K, V=V)
    results = []
    for views in ((q, k, v), tuple(in_nan(x) for x in (q, k, v))):
        x = [view.detach().requires_grad_() for view in views]
        o, final = triton_linear_attention(x[0], x[1], x[2])
        weight = torch.ones(o.shape[-1], device=o.device).expand(o.shape)  # a stride of 0
        gradients = torch.autograd.grad(o, x, weight.to(o.dtype))
        results.append((o, *final, *gradients))
    for copied, strided in zip(*results, strict=True):
        assert_close(strided, copied)


@sizes
def test_outputs_are_fully_written_without_writes_out_of_bounds(
    target: Target, T: int, K: int, V: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All buffers are initialised with NaN and have guards at both ends."""
    guard, mark = 1024, 12345.0
    buffers: list[tuple[Tensor, int]] = []

    def guarded(x: Tensor, *shape: Any, **options: Any) -> Tensor:
        if sys._getframe(1).f_globals["__name__"] != triton_attention.__name__:
            return plain(x, *shape, **options)
        sizes = torch.Size(shape[0] if isinstance(shape[0], Sequence) else shape)
        dtype = options.get("dtype", x.dtype)
        buffer = x.new_full((sizes.numel() + 2 * guard,), mark, dtype=dtype)
        buffers.append((buffer, sizes.numel()))
        inner = buffer[guard : guard + sizes.numel()]
        return inner.fill_(torch.nan).view(sizes)

    plain = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", guarded)
    q, k, v = features(target, T, K=K, V=V)
    x = leaves((q, k, v))
    o, _ = triton_linear_attention(x[0], x[1], x[2])
    torch.autograd.grad(o, x, o)
    assert len(buffers) == 4 + 1  # o, denominators, state; one gradient
    (qkv,) = leaves([torch.stack([q, k, q], 2)])
    o = triton_packed_attention(qkv)
    torch.autograd.grad(o, qkv, o)
    monkeypatch.undo()
    assert len(buffers) == 5 + 3  # o, denominators; one gradient
    for buffer, size in buffers:
        assert not buffer[guard : guard + size].isnan().any()
        assert (buffer[:guard] == buffer.new_tensor(mark)).all()
        assert (buffer[guard + size :] == buffer.new_tensor(mark)).all()


def test_nan_propagates(target: Target) -> None:
    for which in range(3):
        q, k, v = features(target, 34)
        (q, k, v)[which][0, 33, 1, 3] = torch.nan
        o, final = triton_linear_attention(q, k, v)
        assert o[0, 33, 1].isnan().any()
        assert not o[0, :32].isnan().any()
        assert final.kv[0, 1].isnan().any() == (which > 0)


def test_keys_of_minus_infinity_are_ignored(target: Target) -> None:
    q, k, v = inputs(target, 50)
    (qkv,) = leaves([torch.stack((q, k, v), 2)])
    ignored = torch.zeros(50, 3, 1, 1, dtype=torch.bool, device=q.device)
    ignored[20, 1] = True
    keep = torch.arange(50, device=q.device) != 20
    o = triton_packed_attention(qkv.masked_fill(ignored, -torch.inf))
    expected = triton_packed_attention(qkv[:, keep].detach())
    assert_close(o[:, keep], expected)
    (gradient,) = torch.autograd.grad(o.sum(), qkv)
    assert gradient.isfinite().all()
    assert (gradient[:, 20, 1] == 0).all()


def test_image_does_not_depend_on_the_batch(target: Target) -> None:
    q, k, v = features(target, 33, B=3)
    x = leaves((q, k, v))
    together, final = triton_linear_attention(x[0], x[1], x[2])
    gradients = torch.autograd.grad(together, x, together)
    for b in range(3):
        y = leaves([tensor[b : b + 1] for tensor in (q, k, v)])
        alone, end = triton_linear_attention(y[0], y[1], y[2])
        assert torch.equal(alone[0], together[b])
        assert torch.equal(end.kv[0], final.kv[b])
        for one, every in zip(torch.autograd.grad(alone, y, alone), gradients, strict=True):
            assert torch.equal(one[0], every[b])


def test_causal(target: Target) -> None:
    q, k, v = features(target, 65)
    before, _ = triton_linear_attention(q, k, v)
    k[:, 40] += 1
    v[:, 40] -= 1
    after, _ = triton_linear_attention(q, k, v)
    assert torch.equal(after[:, :40], before[:, :40])
    assert not torch.allclose(after[:, 40], before[:, 40])


def test_double_backward_raises(target: Target) -> None:
    q, k, v = leaves(features(target, 4))
    o, _ = triton_linear_attention(q, k, v)
    with pytest.raises(RuntimeError, match="double backward is not supported"):
        torch.autograd.grad(o.square().sum(), q, create_graph=True)
    (qkv,) = leaves([torch.stack((q, k, v), 2)])
    o = triton_packed_attention(qkv)
    with pytest.raises(RuntimeError, match="double backward is not supported"):
        torch.autograd.grad(o.square().sum(), qkv, create_graph=True)


@pytest.mark.gpu
@pytest.mark.skipif(INTERPRETED, reason="too many programs for the interpreter")
def test_more_programs_than_the_second_grid_axis_allows() -> None:
    q, k, v = features(Target("cuda", torch.float32), 1, B=70_000, H=1)
    o, final = triton_linear_attention(q, k, v)
    expected, end = naive_linear_attention(q, k, v)
    assert_close(o, expected)
    assert_close(final.kv, end.kv)


@pytest.mark.gpu
@pytest.mark.skipif(INTERPRETED, reason="needs tens of gigabytes")
def test_more_elements_than_32_bits() -> None:
    """The last of 2,100 images, with 2.2 billion outputs in total, equals a single image."""
    q, k, v = features(Target("cuda", torch.bfloat16), 1024, B=1, H=16, K=16, V=64)
    many = [x.expand(2100, -1, -1, -1) for x in (q, k, v)]
    o, final = triton_linear_attention(many[0], many[1], many[2])
    assert o.numel() > 2**31
    alone, end = triton_linear_attention(q, k, v)
    assert torch.equal(o[-1], alone[0])
    assert torch.equal(final.kv[-1], end.kv[0])
    del o, final, many
    one = torch.stack((q, k, k), 2)
    (packed,) = leaves([one.expand(2800, -1, -1, -1, -1)])
    assert packed.numel() > 2**31  # as many as its gradient has
    o = triton_packed_attention(packed)
    (gradient,) = torch.autograd.grad(o, packed, o)
    (small,) = leaves([one])
    o = triton_packed_attention(small)
    assert torch.equal(gradient[-1], torch.autograd.grad(o, small, o)[0][0])
