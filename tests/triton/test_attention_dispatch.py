"""Tests of the dispatch to the Triton attention."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch

from scanline.kernels.attention.features import elu_feature_map
from scanline.kernels.attention.naive import naive_linear_attention
from scanline.kernels.cuda import attention as triton_attention
from scanline.kernels.ops import attention as dispatch
from scanline.kernels.ops.attention import linear_attention, uses_triton
from scanline.model.config import ModelConfig
from scanline.model.network import LinearTransformer
from scanline.model.pixel_bits import likelihood_network, pixel_bits, pixel_distributions
from tests.conftest import assert_close, random_canvas, random_network, tiny_config
from tests.triton.targets import Target, inputs

SEPARATE, PACKED = "triton_linear_attention", "triton_packed_attention"


def record_calls(monkeypatch: pytest.MonkeyPatch, target: Target) -> list[str]:
    """Record calls of the kernels by name; in the interpreter, dispatch CPU tensors to them."""
    calls: list[str] = []

    def recorded(name: str, function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            calls.append(name)
            return function(*arguments)

        return call

    for name in (SEPARATE, PACKED):
        monkeypatch.setattr(triton_attention, name, recorded(name, getattr(triton_attention, name)))
    if target.device == "cpu":
        monkeypatch.setattr(dispatch, "uses_triton", lambda q, v: True)
    return calls


def test_dispatch_by_device_dtype_and_head_size(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = inputs(target, 5)
    on_gpu = target.device == "cuda"
    assert uses_triton(q, v) == on_gpu
    monkeypatch.setattr(dispatch, "triton_available", lambda device: True)
    assert uses_triton(q, v)
    assert not uses_triton(q.double(), v.double())
    assert not uses_triton(q[..., :15], v)
    assert not uses_triton(q, v.repeat(1, 1, 1, 5))
    q, k = elu_feature_map(q), elu_feature_map(k)
    expected, _ = naive_linear_attention(q.double(), k.double(), v.double())
    calls = record_calls(monkeypatch, target)
    o, _ = linear_attention(q, k, v)
    assert calls == [SEPARATE]
    assert_close(o.double(), expected, o.dtype)


def test_network_trains_and_prefills_with_triton(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in training: float32 parameters, with autocast if the target is bfloat16."""
    config: ModelConfig = tiny_config(d_model=48, n_heads=3)
    network = LinearTransformer(config).to(target.device)
    canvas = random_canvas(config, 3).to(target.device)
    lengths = torch.tensor([7, 20, 1], device=target.device)
    double = LinearTransformer(config).to(target.device, torch.float64)
    double.load_state_dict(network.state_dict())
    expected = double.bits(canvas).mean()
    expected.backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        expected_states, _ = double.prefill(canvas, lengths)
    calls = record_calls(monkeypatch, target)
    with torch.autocast(target.device, target.dtype, enabled=target.dtype == torch.bfloat16):
        bits = network.bits(canvas).mean()
    bits.backward()  # type: ignore[no-untyped-call]
    assert calls == [PACKED] * config.n_layers
    calls.clear()
    assert_close(bits.double(), expected, target.dtype)
    for mine, theirs in zip(network.parameters(), double.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert_close(mine.grad.double(), theirs.grad, target.dtype)
    with torch.no_grad():
        states, _ = network.prefill(canvas, lengths)
    assert calls == [SEPARATE] * config.n_layers
    for state, expected_state in zip(states, expected_states, strict=True):
        for name, tensor in state.items():
            assert_close(tensor.double(), expected_state[name], torch.float32)


def test_likelihoods_run_the_causal_kernel(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of whole images in one pass, and of the next value after a prefill."""
    config: ModelConfig = tiny_config(d_model=48, n_heads=3, classes=("cat", "dog"))
    double = random_network(config)
    canvas, values = random_canvas(config, 3), list(range(9))
    expected = double.bits(canvas, torch.tensor([1, 0, -1])).detach()
    expected_next = pixel_distributions(double, values, [1])[0, -1]
    network = copy.deepcopy(double).float().to(target.device)
    calls = record_calls(monkeypatch, target)
    bits = pixel_bits(network, canvas.numpy(), np.array([1, 0, -1]))
    assert calls == [PACKED] * config.n_layers
    assert_close(torch.from_numpy(bits), expected, torch.float32)
    calls.clear()
    probabilities = pixel_distributions(network, values, [1])[0, -1]
    assert calls == [SEPARATE] * config.n_layers
    assert_close(torch.from_numpy(probabilities), torch.from_numpy(expected_next), torch.float32)
    assert likelihood_network(network, torch.device("cpu")) is network
    if target.device == "cuda":
        moved = likelihood_network(double.float(), torch.device("cuda"))
        assert next(moved.parameters()).is_cuda
