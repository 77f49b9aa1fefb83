"""Tests of forward and backward passes as a CUDA graph and with the Triton kernels."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from scanline.kernels.native.training import library as native
from scanline.kernels.ops import residual
from scanline.model.config import ModelConfig
from scanline.model.network import LinearTransformer
from scanline.model.training import forward_backward as forward_backward
from scanline.model.training.forward_backward import ForwardBackward
from tests.conftest import assert_close
from tests.model.decoders.fixtures import GREY, KINDS, network_for
from tests.triton.fixtures import INTERPRETED, gpu, interpreter_and_gpu, parametrize_configs

NETWORKS = KINDS | {
    "relu": replace(GREY, activation="relu"),
    "polynomial": replace(GREY, feature_map="polynomial"),
    "lsh": replace(GREY, attention="lsh-1", lsh_chunk=4),
    "softmax": replace(GREY, attention="softmax"),
}


def batch(config: ModelConfig, seed: int) -> tuple[Tensor, Tensor | None]:
    generator = torch.Generator().manual_seed(seed)
    shape = (3, config.pixels, config.channels)
    canvas = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    labels = torch.tensor([-1, 0, 1]).roll(seed) if config.classes else None
    return canvas, labels


def loss_and_gradients(
    passes: ForwardBackward, network: LinearTransformer, *batch: Any
) -> list[Tensor]:
    """Take one pass in training mode, with the same random numbers in every call."""
    network.train().zero_grad()
    torch.manual_seed(0)
    bits = passes(*batch)
    gradients = [p.grad.clone() for p in network.parameters() if p.grad is not None]
    assert len(gradients) == len(list(network.parameters()))
    return [bits.clone(), *gradients]


class TestCapturedGraph:
    pytestmark = gpu

    @pytest.mark.parametrize("bf16", [False, True])
    @pytest.mark.parametrize("config", NETWORKS.values(), ids=NETWORKS.keys())
    def test_graph_equals_eager_execution(self, config: ModelConfig, bf16: bool) -> None:
        """Also for other images than those of the capture, and after a weight update."""
        network = network_for(config).cuda()
        passes, plain = ForwardBackward(network, bf16=bf16), ForwardBackward(network, bf16=bf16)
        plain._use_graph = False
        for seed in range(3):
            canvas, labels = batch(config, seed)
            data = canvas.cuda(), None if labels is None else labels.cuda()
            actual = loss_and_gradients(passes, network, *data)
            expected = loss_and_gradients(plain, network, *data)
            for one, other in zip(actual, expected, strict=True):
                scale = other.abs().max().clamp(min=1e-6)
                assert_close(one / scale, other / scale, torch.float32)
            with torch.no_grad():
                for parameter, gradient in zip(network.parameters(), actual[1:], strict=True):
                    parameter.sub_(1e-3 * gradient)
        assert passes._graph is not None


@pytest.mark.parametrize("kind", ["grey", "lsh"])
def test_failed_capture_is_logged_and_training_continues(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The failed attempt adds nothing to the gradients, and uses up no random numbers."""

    def fail(run: Any, network: LinearTransformer, stream: Any, *batch: Any) -> None:
        run(*batch)
        raise RuntimeError("operation not permitted when stream is capturing")

    def nothing(*_: Any) -> None: ...

    stream = SimpleNamespace(wait_stream=nothing, synchronize=nothing)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", nothing)
    monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    monkeypatch.setattr(forward_backward, "_capture_graph", fail)
    config = NETWORKS[kind]
    network = network_for(config)
    passes, plain = ForwardBackward(network, bf16=False), ForwardBackward(network, bf16=False)
    passes._use_graph = True
    with caplog.at_level(logging.WARNING, "scanline.training"):
        calls = [loss_and_gradients(passes, network, *batch(config, 0)) for _ in range(2)]
    (message,) = (record.message for record in caplog.records)
    assert message.startswith("the CUDA graph could not be captured: training continues without it")
    assert message.endswith(": operation not permitted when stream is capturing")
    expected = loss_and_gradients(plain, network, *batch(config, 0))
    for actual in calls:
        for one, other in zip(actual, expected, strict=True):
            assert torch.equal(one, other)


def test_graph_rejects_other_batch_shapes() -> None:
    canvas, labels = batch(KINDS["grey"], 0)
    assert labels is not None
    graph: Any = SimpleNamespace(replay=lambda: None)
    captured = forward_backward._CapturedGraph(graph, canvas, labels, torch.zeros(()), [])
    captured.run(canvas, labels)
    for other in ((canvas[:1], labels[:1]), (canvas, None)):
        with pytest.raises(ValueError, match=r"captured for images \[3, 20, 1\]"):
            captured.run(*other)


@interpreter_and_gpu
@parametrize_configs(NETWORKS, "grey", "rgb", "relu")
def test_gradients_with_and_without_the_kernels_agree(
    config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
    config = replace(config, height=3, width=3)
    network = network_for(config).to(device)
    canvas, labels = (None if one is None else one.to(device) for one in batch(config, 0))
    assert canvas is not None
    results = []
    with native.disabled():
        for available in (False, True):
            monkeypatch.setattr(
                residual, "triton_available", lambda _, available=available: available
            )
            network.zero_grad()
            bits = ForwardBackward(network, bf16=False)._run(canvas, labels)
            results.append([bits, *(p.grad for p in network.parameters() if p.grad is not None)])
    # A common scale, because some gradients are rounding errors only.
    scale = max(float(one.abs().max()) for one in results[0][1:])
    for one, other in zip(*results, strict=True):
        assert_close(other / scale, one / scale, torch.float32)
