"""Slots are independent of each other."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from scanline.model.config import ModelConfig
from scanline.model.decoders.base import InputBatch
from scanline.model.decoders.factory import create_decoder
from tests.conftest import assert_close, tiny_config
from tests.model.decoders.fixtures import (
    GREY,
    PRECISION,
    RGB,
    blank,
    different_layers,
    draw,
    draw_at_random_times,
    masked,
    network_bits,
    network_for,
    state_of,
)


@different_layers
def test_other_slots_are_neither_read_nor_written(config: ModelConfig, backend: str) -> None:
    """Slots 1 and 3 draw among slots full of NaN, which neither change nor spread."""
    network, inputs = network_for(config), masked(config, 2)
    clean, clean_bits = draw(network, backend, inputs)
    decoder = create_decoder(network, 5, backend)
    others = [0, 2, 4]
    given = decoder.inputs
    for part in (decoder.bits, given.temperature, *state_of(decoder)):
        part[others] = np.nan
    decoder.canvas[others], decoder.positions[others], given.known[others] = 77, 3, True
    parts: list[NDArray[Any]] = [
        decoder.bits, decoder.positions, *state_of(decoder),
        *(getattr(given, field.name) for field in fields(InputBatch)),
    ]  # fmt: skip
    before = [part[others].copy() for part in parts]
    decoder.begin([1, -1, 3], inputs.select([0, 0, 1]))
    decoder.step(np.array([-1, 3, -1, 1, -1], np.int32), 4)
    decoder.step(np.array([1, 3, -1], np.int32), config.pixels)
    for old, new in zip(before, parts, strict=True):
        assert np.array_equal(old, new[others], equal_nan=np.issubdtype(old.dtype, np.floating))
    assert np.array_equal(decoder.canvas[[1, 3]], clean)
    assert np.array_equal(decoder.bits[[1, 3]], clean_bits)
    # A slot full of NaN can be reused.
    decoder.begin([4, 0], inputs)
    decoder.step([0, 4], config.pixels)
    assert np.array_equal(decoder.canvas[[4, 0]], clean)
    assert np.array_equal(decoder.bits[[4, 0]], clean_bits)


def test_unknown_or_duplicate_slots_are_rejected(backend: str) -> None:
    decoder = create_decoder(network_for(GREY), 3, backend)
    decoder.begin([0, 1, 2], blank(GREY, 3))
    for slots in ([0, 1, 0], [3], [-2]):
        inputs = blank(GREY, len(slots))
        with pytest.raises(ValueError, match="slots must be -1 or different numbers"):
            decoder.step(slots, 1)
        with pytest.raises(ValueError, match="slots must be -1 or different numbers"):
            decoder.begin(slots, inputs)
        with pytest.raises(ValueError, match="slots must be -1 or different numbers"):
            decoder.reseed(slots, inputs.particle)
    assert decoder.positions.tolist() == [0, 0, 0]
    decoder.step([0, 1, 2], 1)  # the invalid calls had no effect
    assert decoder.positions.tolist() == [1, 1, 1]


def test_empty_slots_do_nothing(backend: str) -> None:
    decoder = create_decoder(network_for(GREY), 2, backend)
    for slots in (np.array([], np.int32), np.array([-1, -1], np.int32)):
        decoder.begin(slots, blank(GREY, len(slots)))
        decoder.step(slots, 3)
    assert decoder.positions.tolist() == [0, 0]
    assert (decoder.canvas == 0).all()


@different_layers
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.broad)])
def test_same_seed_gives_same_bytes_in_any_batch(
    config: ModelConfig, seed: int, backend: str
) -> None:
    """Images in slots that may hold abandoned images equal those drawn alone."""
    count = 6 if backend == "reference" else 12  # the reference draws images one after another
    network, inputs = network_for(config), masked(config, count, seed=seed)
    alone = create_decoder(network, 1, backend)
    expected: list[tuple[NDArray[np.uint8], NDArray[np.float32]]] = []
    for image in range(count):
        alone.begin([0], inputs.select([image]))
        alone.step([0], config.pixels)
        expected.append((alone.canvas[0].copy(), alone.bits[0].copy()))
    decoder, generator = create_decoder(network, 5, backend), np.random.default_rng(seed)
    decoder.begin([4, 1], inputs.select([2, 1]))
    decoder.step([1, 4], 9)
    for image, slot in draw_at_random_times(decoder, inputs, generator):
        canvas, bits = expected[image]
        assert np.array_equal(decoder.canvas[slot], canvas), image
        assert np.array_equal(decoder.bits[slot], bits), image


@pytest.mark.parametrize("channels", [1, 3])
def test_given_first_value_costs_no_bits(channels: int, backend: str) -> None:
    """The first value is the caller's or the config's, and has no bits."""
    config = tiny_config(
        input="previous", order="subpixel", head="logistic_mixture", positions="sinusoidal",
        norm="post", start="given", first_value=200, channels=channels, classes=("cat", "dog"),
    )  # fmt: skip
    network, inputs = network_for(config), blank(config, 2)
    inputs.known[1, 0] = True
    inputs.canvas[1, 0] = 31
    canvas, bits = draw(network, backend, inputs)
    assert canvas[0, 0, 0] == 200
    assert canvas[1, 0].tolist() == [31] * channels
    assert (bits[:, 0] == 0).all() == (channels == 1)
    prefilled = create_decoder(network, 1, backend)
    prefilled.begin([0], inputs.select([1]))
    if prefilled.min_prefill > 1:
        prefilled.step([0], 1)
    assert prefilled.positions.tolist() == [1]
    assert_close(
        torch.from_numpy(prefilled.bits[:, 0]), torch.from_numpy(bits[1:, 0]), PRECISION[backend]
    )
    prefilled.step([0], config.pixels)
    assert_close(
        torch.from_numpy(prefilled.bits[0]),
        torch.from_numpy(network_bits(network, prefilled.canvas, inputs.select([1]))[0]),
        PRECISION[backend],
    )
    guided = blank(config, 1)
    guided.label[:], guided.guidance[:], guided.twin[:] = 0, 2.0, 1
    pair = create_decoder(network, 2, backend)
    pair.begin([0], guided)
    pair.step([0], 1)
    assert pair.positions.tolist() == [1, 1]


def test_new_image_resets_its_slot(backend: str) -> None:
    network, inputs = network_for(GREY), masked(GREY, 2)
    expected, _ = draw(network, backend, inputs)
    decoder = create_decoder(network, 1, backend)
    for row in (0, 1, 0):
        decoder.begin([0], inputs.select([row]))
        assert decoder.positions[0] == decoder.prefill_lengths(inputs)[row]
        assert (decoder.bits[0, decoder.positions[0] :] == 0).all()
        decoder.step([0], 11 if row else GREY.pixels)  # the second image is cancelled early
        if row == 0:
            assert np.array_equal(decoder.canvas[0], expected[0])


def test_array_shapes_and_dtypes(backend: str) -> None:
    decoder = create_decoder(network_for(RGB), 3, backend)
    T = RGB.pixels
    assert decoder.canvas.shape == (3, T, 3)
    assert decoder.canvas.dtype == np.uint8
    assert decoder.bits.shape == (3, T)
    assert decoder.bits.dtype == np.float32
    assert decoder.positions.shape == (3,)
    assert decoder.positions.dtype == np.int32
    assert decoder.inputs.seed.shape == decoder.inputs.particle.shape == (3,)
    assert decoder.backend == backend
    assert decoder.max_slots == 3


def test_weights_are_copied_at_creation(backend: str) -> None:
    """Training the model further does not affect an existing decoder."""
    network, inputs = network_for(GREY), blank(GREY, 1)
    expected, _ = draw(network, backend, inputs)
    decoder = create_decoder(network, 1, backend)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    decoder.begin([0], inputs)
    decoder.step([0], GREY.pixels)
    assert np.array_equal(decoder.canvas, expected)
