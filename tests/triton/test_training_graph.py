"""A training step's passes as one CUDA graph, beside the same as torch runs them."""

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
from tests.triton.fixtures import INTERPRETED, anywhere, gpu

NETWORKS = KINDS | {
    "relu": replace(GREY, activation="relu"),
    "polynomial": replace(GREY, feature_map="polynomial"),
    "lsh": replace(GREY, attention="lsh-1"),
    "softmax": replace(GREY, attention="softmax"),
}


def batch(config: ModelConfig, seed: int) -> tuple[Tensor, Tensor | None]:
    generator = torch.Generator().manual_seed(seed)
    shape = (3, config.pixels, config.channels)
    canvas = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    labels = torch.tensor([-1, 0, 1]).roll(seed) if config.classes else None
    return canvas, labels


def learnt(passes: ForwardBackward, network: LinearTransformer, *batch: Any) -> list[Tensor]:
    network.zero_grad()
    bits = passes(*batch)
    gradients = [p.grad.clone() for p in network.parameters() if p.grad is not None]
    assert len(gradients) == len(list(network.parameters()))
    return [bits.clone(), *gradients]


class TestRecorded:
    pytestmark = gpu

    @pytest.mark.parametrize("bf16", [False, True])
    @pytest.mark.parametrize("config", NETWORKS.values(), ids=NETWORKS.keys())
    def test_a_graph_gives_what_its_kernels_give(self, config: ModelConfig, bf16: bool) -> None:
        """Of other images than those it was recorded with, after a step of the weights."""
        network = network_for(config).cuda()
        passes, plain = ForwardBackward(network, bf16=bf16), ForwardBackward(network, bf16=bf16)
        plain._use_graph = False
        for seed in range(3):
            canvas, labels = batch(config, seed)
            given = canvas.cuda(), None if labels is None else labels.cuda()
            mine, theirs = learnt(passes, network, *given), learnt(plain, network, *given)
            for one, other in zip(mine, theirs, strict=True):
                scale = other.abs().max().clamp(min=1e-6)
                assert_close(one / scale, other / scale, torch.float32)
            with torch.no_grad():
                for parameter, gradient in zip(network.parameters(), mine[1:], strict=True):
                    parameter.sub_(1e-3 * gradient)
        assert passes._graph is not None


def test_where_no_graph_can_be_made_it_is_said_and_training_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With the gradients of the batch alone, though the attempt left some behind."""

    def refused(run: Any, network: LinearTransformer, stream: Any, *batch: Any) -> None:
        run(*batch)
        raise RuntimeError("operation not permitted when stream is capturing")

    def nothing(*_: Any) -> None: ...

    stream = SimpleNamespace(wait_stream=nothing, synchronize=nothing)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", nothing)
    monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    monkeypatch.setattr(forward_backward, "_capture_graph", refused)
    config = KINDS["grey"]
    network = network_for(config)
    passes, plain = ForwardBackward(network, bf16=False), ForwardBackward(network, bf16=False)
    passes._use_graph = True
    network.zero_grad()
    with caplog.at_level(logging.WARNING, "scanline.training"):
        for _ in range(2):
            mine = learnt(passes, network, *batch(config, 0))
    (said,) = (record.message for record in caplog.records)
    assert said.startswith("the CUDA graph could not be captured: training continues without it")
    assert said.endswith(": operation not permitted when stream is capturing")
    for one, other in zip(mine, learnt(plain, network, *batch(config, 0)), strict=True):
        assert torch.equal(one, other)


def test_a_graph_refuses_batches_of_another_shape() -> None:
    canvas, labels = batch(KINDS["grey"], 0)
    assert labels is not None
    graph: Any = SimpleNamespace(replay=lambda: None)
    recording = forward_backward._CapturedGraph(graph, canvas, labels, torch.zeros(()), [])
    recording.run(canvas, labels)
    for other in ((canvas[:1], labels[:1]), (canvas, None)):
        with pytest.raises(ValueError, match=r"captured for images \[3, 20, 1\]"):
            recording.run(*other)


@anywhere
@pytest.mark.parametrize("config", NETWORKS.values(), ids=NETWORKS.keys())
def test_networks_learn_the_same_with_the_kernels(
    config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chosen as on a device, run in the interpreter if need be."""
    place = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
    config = replace(config, height=3, width=3)
    network = network_for(config).to(place)
    canvas, labels = (None if one is None else one.to(place) for one in batch(config, 0))
    assert canvas is not None
    results = []
    with native.disabled():
        for there in (False, True):
            monkeypatch.setattr(residual, "triton_available", lambda _, there=there: there)
            network.zero_grad()
            bits = ForwardBackward(network, bf16=False)._run(canvas, labels)
            results.append([bits, *(p.grad for p in network.parameters() if p.grad is not None)])
    most = max(
        float(one.abs().max()) for one in results[0][1:]
    )  # some gradients are rounding alone
    for one, other in zip(*results, strict=True):
        assert_close(other / most, one / most, torch.float32)
