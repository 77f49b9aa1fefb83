"""Tests of the Triton decoder: agreement with float64, and the same bytes in any batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from scanline.kernels.cuda import decode_plan
from scanline.kernels.cuda.buffers import allocate_buffers
from scanline.model.config import ModelConfig
from scanline.model.decoders.triton import TritonDecoder
from tests.model.decoders.fixtures import blank, draw_at_random_times, network_for
from tests.model.network.variants import VARIANTS
from tests.triton.fixtures import (
    GRID,
    ODD,
    all_slots,
    check_decoder,
    check_launches_in_flight,
    draw,
    grey,
    interpreter_and_gpu,
    parametrize_configs,
    results_of,
    rgb,
    sample_inputs,
    set_write_interval,
)


@parametrize_configs(GRID | ODD, *list(GRID)[::3], *ODD)
def test_float32_agrees_with_float64(config: ModelConfig) -> None:
    check_decoder(config, "float32")


@grey
@pytest.mark.parametrize(
    "unrolled", [pytest.param(decode_plan.UNROLLED, marks=pytest.mark.broad), 0]
)
def test_state_in_several_tiles_agrees_with_float64(
    config: ModelConfig, unrolled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large heads need several tiles per program, unrolled or not; here with tiny tiles."""
    monkeypatch.setattr(decode_plan, "STATE_TILE", 16)
    monkeypatch.setattr(decode_plan, "UNROLLED", unrolled)
    check_decoder(config, "float32")


def test_grid_covers_every_option() -> None:
    for option in (
        "input", "encoding", "order", "channels", "head", "norm", "activation", "positions",
        "start", "classes",
    ):  # fmt: skip
        values = {getattr(config, option) for config in [*GRID.values(), *ODD.values()]}
        assert values == {getattr(config, option) for config in VARIANTS.values()}, option


@interpreter_and_gpu
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # from numpy in the interpreter
@pytest.mark.parametrize("scale", [1.0, 1e30])
@rgb
def test_extreme_numbers_stay_in_range(config: ModelConfig, scale: float) -> None:
    """Extreme temperatures and weights cause no out-of-range values or writes."""
    extremes = [0.0, 1e-45, 1e-9, 3e38]
    network, inputs = network_for(config), blank(config, len(extremes))
    with torch.no_grad():
        for parameter in network.head.parameters():
            parameter.mul_(scale)
    inputs.temperature[:] = extremes
    decoder = TritonDecoder(network, len(extremes))
    decoder.begin(list(range(len(extremes))), inputs)
    decoder.step(all_slots(decoder), 1)
    assert decoder.positions.tolist() == [1] * len(extremes)
    assert (decoder.canvas[:, 1:] == 0).all()


@interpreter_and_gpu
@rgb
def test_write_interval_does_not_change_results(
    config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, network = sample_inputs(config), network_for(config)
    drawn = draw(TritonDecoder(network, 3, fused=False), inputs, 1)
    set_write_interval(1, monkeypatch)
    assert draw(TritonDecoder(network, 3, fused=False), inputs) == drawn


@interpreter_and_gpu
@grey
def test_known_pixels_give_the_same_state_as_drawn_ones(config: ModelConfig) -> None:
    network, inputs = network_for(config), blank(config, 3)
    lengths = np.array([0, 1, config.pixels - 1], np.int32)
    stepped, filled = TritonDecoder(network, 3), TritonDecoder(network, 3)
    stepped.begin([0, 1, 2], inputs)
    for slot, length in enumerate(lengths):
        for _ in range(length):
            stepped.step([slot], 1)
    inputs.canvas[:] = stepped.canvas
    inputs.known[:] = np.arange(config.pixels) < lengths[:, None]
    filled.begin([-1, 0, 1, 2], inputs.select([0, 0, 1, 2]))
    for slot, length in enumerate(lengths):
        filled.step([slot], int(length))
    for actual, expected in zip(results_of(filled), results_of(stepped), strict=True):
        assert actual.tobytes() == expected.tobytes()
    assert np.array_equal(filled.positions, lengths)
    assert np.array_equal(stepped.positions, lengths)


@interpreter_and_gpu
@grey
def test_other_slots_are_neither_read_nor_written(config: ModelConfig) -> None:
    """All other slots and the scratch memory are filled with NaN."""
    network, inputs = network_for(config), sample_inputs(config, 2)
    clean = TritonDecoder(network, 2)
    draw(clean, inputs)
    decoder = TritonDecoder(network, 5)
    for buffer in decoder.buffers.values():
        if buffer.is_floating_point():
            buffer.fill_(torch.nan)
    others = [0, 2, 4]
    decoder.buffers["canvas"][others] = 77
    decoder.buffers["positions"][others] = 1
    if decoder.device.cuda:
        torch.cuda.synchronize()  # the decoder's stream does not wait for this one
    by_slot = {  # with the slots as first dimension
        name: buffer.transpose(0, 1) if name in ("kv", "z", "pending", "ring") else buffer
        for name, buffer in decoder.buffers.items()
        if 5 in buffer.shape[:2]
    }
    assert len(by_slot) == 15
    before = {name: buffer[others].clone() for name, buffer in by_slot.items()}
    decoder.begin([1, 3], inputs)
    decoder.step(np.array([-1, 3, -1, 1], np.int32), 1)
    decoder.step(np.array([1, 3, -1], np.int32), config.pixels)
    decoder.step(np.array([1, 3], np.int32), 1)  # finished images are skipped
    for actual, expected in zip(results_of(decoder), results_of(clean), strict=True):
        assert actual[[1, 3]].tobytes() == expected.tobytes()
    for name, old in before.items():
        assert torch.equal(by_slot[name][others].nan_to_num(-1), old.nan_to_num(-1)), name


@pytest.mark.parametrize(
    "name", [pytest.param("wide", marks=pytest.mark.broad), "convolved, small d_ff"]
)
def test_no_writes_behind_buffers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here tiles are larger than the rows, features or images."""
    guards: list[torch.Tensor] = []

    def guarded(*arguments: Any) -> dict[str, torch.Tensor]:
        buffers = allocate_buffers(*arguments)
        if any(buffer.is_meta for buffer in buffers.values()):
            return buffers
        for buffer_name, buffer in buffers.items():
            memory = torch.full((buffer.numel() + 8192,), 77, dtype=buffer.dtype)
            buffers[buffer_name] = memory[: buffer.numel()].view(buffer.shape)
            guards.append(memory[buffer.numel() :])
        return buffers

    monkeypatch.setattr("scanline.model.decoders.triton.allocate_buffers", guarded)
    config = replace(ODD[name], n_layers=1)
    draw(TritonDecoder(network_for(config), 3), sample_inputs(config))
    assert len(guards) > 20
    assert all((guard == 77).all() for guard in guards)


@grey
def test_launches_in_flight(config: ModelConfig) -> None:
    check_launches_in_flight(config, "float32")


@rgb
def test_same_bytes_in_any_batch(config: ModelConfig) -> None:
    """Images arrive at random times in random slots, some of which hold abandoned images."""
    network, inputs = network_for(config), sample_inputs(config, seed=3)
    expected = []
    alone = TritonDecoder(network, 1)
    for image in range(3):
        alone.begin([0], inputs.select([image]))
        alone.step([0], config.pixels)
        expected.append([array.tobytes() for array in results_of(alone)])
    decoder = TritonDecoder(network, 2)
    decoder.begin([0, 1], inputs.select([2, 1]))
    decoder.step([1, 0], 1)  # cancelled after one pixel
    generator = np.random.default_rng(0)
    for image, slot in draw_at_random_times(decoder, inputs, generator, most_pixels=3):
        assert [array[slot].tobytes() for array in results_of(decoder)] == expected[image]
