"""Temperatures, labels and step sizes of decoders."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scanline.model.config import ModelConfig
from scanline.model.decoders.factory import create_decoder
from tests.model.decoders.fixtures import (
    GREY,
    RGB,
    blank,
    draw,
    every_kind,
    network_for,
    state_of,
)


@every_kind
def test_slot_minus_one_is_skipped(config: ModelConfig, backend: str) -> None:
    inputs = blank(config, 3)
    inputs.known[:] = np.arange(config.pixels) < np.array([[5], [4], [9]])
    decoder = create_decoder(network_for(config), 3, backend)
    decoder.begin([-1, 2, -1], inputs)
    assert decoder.positions.tolist() == [0, 0, 4 if decoder.min_prefill <= 4 else 0]
    decoder.step([0, 1, 2], 4)
    assert decoder.positions.tolist() == [4, 4, 8 if decoder.min_prefill <= 4 else 4]
    assert np.array_equal(decoder.canvas[2, :4], inputs.canvas[1, :4])
    assert (decoder.canvas[:2, 4:] == 0).all()


@pytest.mark.parametrize("temperature", [-0.5, np.inf, np.nan])
def test_out_of_range_temperatures_are_rejected(temperature: float, backend: str) -> None:
    decoder, inputs = create_decoder(network_for(GREY), 1, backend), blank(GREY, 1)
    inputs.temperature[0] = temperature
    with pytest.raises(ValueError, match="temperatures must be finite and at least 0"):
        decoder.begin([0], inputs)


@pytest.mark.parametrize("label", [-2, 2, 100])
def test_unknown_labels_are_rejected(label: int, backend: str) -> None:
    decoder = create_decoder(network_for(GREY), 2, backend)
    inputs = blank(GREY, 2)
    inputs.label[1] = label
    with pytest.raises(ValueError, match="labels must be from -1 to 1"):
        decoder.begin([0, 1], inputs)
    assert decoder.inputs.label.tolist() == [-1, -1]
    assert (decoder.canvas == 0).all()


def test_labels_without_classes_are_rejected(backend: str) -> None:
    decoder, inputs = create_decoder(network_for(RGB), 1, backend), blank(RGB, 1)
    inputs.label[0] = 0
    with pytest.raises(ValueError, match="labels must be from -1"):
        decoder.begin([0], inputs)


def test_each_label_draws_a_different_image(backend: str) -> None:
    """One seed in four rows: two without a label are equal, and each class differs."""
    network, inputs = network_for(GREY), blank(GREY, 4)
    inputs.seed[:] = inputs.seed[0]
    inputs.label[:] = [-1, 0, 1, -1]
    canvas, _ = draw(network, backend, inputs)
    assert np.array_equal(canvas[0], canvas[3])
    assert len({row.tobytes() for row in canvas}) == 3


@every_kind
def test_temperature_zero_ignores_the_seed(config: ModelConfig, backend: str) -> None:
    network, inputs = network_for(config), blank(config, 3)
    inputs.temperature[:] = [0, 0, 1]
    inputs.label[:] = -1
    canvas, bits = draw(network, backend, inputs)
    assert np.array_equal(canvas[0], canvas[1])
    assert not np.array_equal(canvas[0], canvas[2])
    assert bits[0].sum() < bits[2].sum()


@every_kind
def test_step_stops_at_the_last_pixel(config: ModelConfig, backend: str) -> None:
    decoder = create_decoder(network_for(config), 2, backend)
    decoder.begin([0, 1], blank(config, 2))
    decoder.step([0], config.pixels - 1)
    assert decoder.positions.tolist() == [config.pixels - 1, 0]
    decoder.step([0, 1], 2**31)
    assert decoder.positions.tolist() == [config.pixels] * 2
    parts: list[NDArray[Any]] = [decoder.canvas, decoder.bits, *state_of(decoder)]
    before = [part.copy() for part in parts]
    decoder.step([0, 1], 5)
    decoder.step([0, 1], 0)
    for old, new in zip(before, parts, strict=True):
        assert np.array_equal(old, new)
