"""Predicted pixels: the same bytes in fewer passes, whether predictions are right or wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from scanline.model.config import ModelConfig
from scanline.model.decoders.base import InputBatch
from scanline.model.decoders.native import NativeDecoder
from scanline.model.network import LinearTransformer
from tests.conftest import tiny_config
from tests.kernels.native.fixtures import every_kind
from tests.model.decoders.fixtures import blank, network_for


def repetitive(config: ModelConfig) -> tuple[LinearTransformer, InputBatch]:
    """Return a network with repetitive output, and inputs of three images with known parts."""
    # Enough pixels for the predictor to learn from.
    config = replace(config, classes=("cat", "dog"), height=14, width=12)
    network, inputs = network_for(config), blank(config, 3)
    with torch.no_grad():
        network.head.predictor.weight.mul_(0.05)
        bias = network.head.predictor.bias
        if config.head == "categorical":
            bias[:] = 0
            bias[::256], bias[200::256] = 9, 6  # mostly 0, sometimes 200
        else:
            bias[:], bias[0], bias[1] = -7, 6, 3  # narrow and black, sometimes with another mean
            bias[11] = 0.3
    inputs.temperature[:] = [0.6, 0.8, 1.0]
    inputs.known[0, 20:31] = True
    inputs.known[1, :9] = True
    inputs.known[2, ::7] = True
    return network, inputs


def everything(decoder: NativeDecoder, slot: int) -> list[bytes]:
    return [part[slot].tobytes() for part in (decoder.canvas, decoder.bits, decoder.states)]


@every_kind
@pytest.mark.parametrize("threads", [1, 2])
def test_predictions_do_not_change_the_bytes(config: ModelConfig, threads: int, isa: str) -> None:
    """Wrong predictions leave no trace between calls either."""
    network, inputs = repetitive(config)
    c = network.config
    for count in (1, 2, 3):
        slots = np.arange(count, dtype=np.int32)
        plain = NativeDecoder(network, 3, threads, isa=isa, speculate=False, team=threads)
        speculating = NativeDecoder(network, 3, threads, isa=isa, team=threads)
        for attempt in range(2):  # the second time with what the predictor learned the first time
            for decoder in (plain, speculating):
                decoder.begin(slots, inputs.select(slots))
            for n in (1, 2, 30, 7, 60, c.pixels):
                for decoder in (plain, speculating):
                    decoder.step(slots, n)
                for slot in range(count):
                    assert everything(speculating, slot) == everything(plain, slot), (
                        count,
                        attempt,
                        n,
                    )
        if count < 3:
            assert speculating._native.pass_counts[0] < plain._native.pass_counts[0]


def test_some_predictions_are_right_and_some_wrong() -> None:
    network, inputs = repetitive(tiny_config())
    decoder = NativeDecoder(network, 1, 1)
    decoder.begin([0], inputs.select([2]))
    before = decoder._native.pass_counts
    decoder.step([0], decoder.config.pixels)
    passes, rows, _ = (
        now - then for now, then in zip(decoder._native.pass_counts, before, strict=True)
    )
    steps = decoder.config.steps - 1  # the first is known
    assert passes < 0.8 * steps
    assert rows > steps


def shaped(inputs: InputBatch, twin: NDArray[np.int32]) -> InputBatch:
    inputs.label[:] = [0, 1, 1]
    inputs.guidance[:], inputs.top_p[:], inputs.twin[:] = 2.0, [0.9, 1.0, 0.98], twin
    return inputs


@every_kind
def test_guided_images_and_forks(config: ModelConfig) -> None:
    network, inputs = repetitive(config)
    shaped(inputs, np.array([3, 4, 5], np.int32))
    finished = []
    for speculate in (False, True):
        decoder = NativeDecoder(network, 8, 2, speculate=speculate, team=2)
        decoder.begin([0, 1], inputs.select([0, 1]))
        decoder.step([0, 1], 41)
        decoder.fork([1], [6], [7])
        decoder.step([0], 5)
        decoder.step([6], network.config.pixels)
        decoder.step([1, 0], network.config.pixels)
        finished.append([everything(decoder, slot) for slot in (0, 1, 3, 4, 6, 7)])
        assert everything(decoder, 6) == everything(decoder, 1)
    assert finished[0] == finished[1]
