"""A training step's passes as one CUDA graph, beside the same as torch runs them."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor

from scanline.model.config import ModelConfig
from scanline.model.network import LinearTransformer
from scanline.model.training import passes as training_passes
from scanline.model.training.passes import Passes
from tests.conftest import assert_close
from tests.decoders.fixtures import KINDS, network_of
from tests.triton.fixtures import gpu


def batch(config: ModelConfig, seed: int) -> tuple[Tensor, Tensor | None]:
    generator = torch.Generator().manual_seed(seed)
    shape = (3, config.pixels, config.channels)
    canvas = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    labels = torch.tensor([-1, 0, 1]) if config.classes else None
    return canvas, labels


def learnt(passes: Passes, network: LinearTransformer, *batch: Any) -> list[Tensor]:
    network.zero_grad()
    bits = passes(*batch)
    gradients = [p.grad.clone() for p in network.parameters() if p.grad is not None]
    assert len(gradients) == len(list(network.parameters()))
    return [bits.clone(), *gradients]


class TestRecorded:
    pytestmark = gpu

    @pytest.mark.parametrize("bf16", [False, True])
    @pytest.mark.parametrize("config", KINDS.values(), ids=KINDS.keys())
    def test_a_graph_gives_what_its_kernels_give(self, config: ModelConfig, bf16: bool) -> None:
        """Of other images than those it was recorded with, after a step of the weights."""
        network = network_of(config).cuda()
        passes, plain = Passes(network, bf16=bf16), Passes(network, bf16=bf16)
        plain._records = False
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
        assert passes._recording is not None


def test_where_no_graph_can_be_made_it_is_said_and_training_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: Any) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(training_passes, "_record", refused)
    config = KINDS["grey"]
    network = network_of(config)
    passes, plain = Passes(network, bf16=False), Passes(network, bf16=False)
    passes._records = True
    with caplog.at_level(logging.WARNING, "scanline.training"):
        for _ in range(2):
            mine = learnt(passes, network, *batch(config, 0))
    assert [record.message for record in caplog.records] == [
        "training goes on, slower, without a CUDA graph, which cannot be made: "
        "operation not permitted when stream is capturing"
    ]
    for one, other in zip(mine, learnt(plain, network, *batch(config, 0)), strict=True):
        assert torch.equal(one, other)
