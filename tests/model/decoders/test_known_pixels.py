"""Known pixels and exact bits, for every backend."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from scanline.model.config import ModelConfig
from scanline.model.decoders.factory import create_decoder
from tests.conftest import assert_close
from tests.model.decoders.fixtures import (
    BACKENDS,
    PRECISION,
    blank,
    different_layers,
    draw,
    every_kind,
    every_layer,
    masked,
    network_bits,
    network_for,
    on_backends,
    state_of,
)
from tests.model.network.variants import few_variants


@few_variants
@pytest.mark.parametrize("backend", BACKENDS[1:], indirect=True)  # test_reference.py has the first
def test_bits_equal_the_networks_for_the_finished_image(config: ModelConfig, backend: str) -> None:
    network, inputs = network_for(config), masked(config, 4)
    canvas, bits = draw(network, backend, inputs)
    expected = network_bits(network, canvas, inputs)
    assert_close(torch.from_numpy(bits), torch.from_numpy(expected), PRECISION[backend])


@every_kind
def test_known_pixels_are_kept(config: ModelConfig, backend: str) -> None:
    network, inputs = network_for(config), masked(config, 6)
    inputs.known[0] = False
    inputs.known[0, 7:12] = True  # a patch in the middle
    inputs.known[1] = True  # all of it
    inputs.known[2] = np.arange(config.pixels) == config.pixels - 1  # the last pixel
    canvas, _ = draw(network, backend, inputs)
    assert np.array_equal(canvas[inputs.known], inputs.canvas[inputs.known])
    unknown = ~inputs.known
    assert (canvas[unknown] != inputs.canvas[unknown]).mean() > 0.5  # unknown pixels were drawn


@different_layers
def test_unknown_input_pixels_have_no_effect(config: ModelConfig, backend: str) -> None:
    """Canvas values at unknown pixels must not reach the model."""
    network, inputs = network_for(config), masked(config, 3)
    before, bits = draw(network, backend, inputs)
    inputs.canvas[~inputs.known] = 255 - inputs.canvas[~inputs.known]
    after, bits_after = draw(network, backend, inputs)
    assert np.array_equal(before, after)
    assert np.array_equal(bits, bits_after)


@every_layer
@on_backends("together", {"together": True, "one by one": False}, ["together"])
def test_known_pixels_are_equivalent_to_drawn_ones(
    config: ModelConfig, together: bool, backend: str
) -> None:
    """Prefilling pixels gives the same bits, state and later pixels as drawing them.

    Slots that begin one by one are tested too, because a backend may then split the steps of one
    image among its threads.
    """
    network, inputs = network_for(config), blank(config, 4)
    lengths = np.array([0, 1, 9, config.pixels], np.int32)
    slots = np.arange(4, dtype=np.int32)
    stepped = create_decoder(network, 4, backend)
    stepped.begin(slots, inputs)
    for slot, length in enumerate(lengths):
        stepped.step(slots[slot : slot + 1], int(length))
    inputs.canvas[:] = stepped.canvas
    inputs.known[:] = np.arange(config.pixels) < lengths[:, None]
    filled = create_decoder(network, 4, backend)
    for some in [slots] if together else np.split(slots, 4):
        filled.begin(some, inputs.select(some))
    dtype = PRECISION[backend]
    if filled.min_prefill == math.inf:
        assert not filled.positions.any()
        for slot, length in enumerate(lengths):
            filled.step(slots[slot : slot + 1], int(length))
    assert np.array_equal(filled.positions, lengths)
    assert np.array_equal(stepped.positions, lengths)
    if backend == "reference":  # both evaluations store the same numbers in the same places
        for actual, reference in zip(state_of(filled), state_of(stepped), strict=True):
            assert_close(torch.from_numpy(actual.copy()), torch.from_numpy(reference.copy()), dtype)
    assert_close(torch.from_numpy(filled.bits), torch.from_numpy(stepped.bits), dtype)
    for decoder in (stepped, filled):
        for slot, length in enumerate(lengths):
            assert (decoder.bits[slot, length:] == 0).all()
        decoder.step(slots, config.pixels)
    if backend != "reference":
        assert np.array_equal(filled.canvas, stepped.canvas)
    for decoder in (stepped, filled):
        expected = torch.from_numpy(network_bits(network, decoder.canvas, inputs))
        most = expected.max() if backend == "triton" else 1  # activations are bf16 too
        assert_close(torch.from_numpy(decoder.bits) / most, expected / most, dtype)


@every_layer
def test_unknown_pixels_are_zero_after_begin(config: ModelConfig, backend: str) -> None:
    inputs = masked(config, 3)
    decoder = create_decoder(network_for(config), 3, backend)
    decoder.begin([0, 1, 2], inputs)
    assert not decoder.canvas[~inputs.known].any()
