"""Tests of the parallel prefill of the Triton decoder: it equals steps, in any batch."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from scanline.kernels.cuda import prefill
from scanline.kernels.cuda.fused.fused_decode import LaunchConfig
from scanline.model.config import PRESETS, ModelConfig
from scanline.model.decoders.base import InputBatch
from scanline.model.decoders.triton import TritonDecoder
from tests.conftest import assert_close, tiny_config
from tests.emulator.emulator import draw
from tests.model.decoders.fixtures import attention_sums, blank, network_for
from tests.triton.fixtures import (
    GRID,
    INTERPRETED,
    ODD,
    all_slots,
    interpreter_and_gpu,
    parametrize_configs,
)

CONV = tiny_config(height=3, width=3, n_layers=1, classes=("cat", "dog"), short_conv="2x3")
RGB = tiny_config(
    height=2, width=3, n_layers=1, channels=3, order="subpixel", head="logistic_mixture",
    norm="post", positions="sinusoidal", n_heads=1,
)  # fmt: skip
SHAPES = {"grey": CONV, "rgb": RGB}
every_shape = parametrize_configs(SHAPES, "grey")


def known_prefixes(config: ModelConfig, lengths: list[int], seed: int = 0) -> InputBatch:
    """Return images with random values of which the first ``lengths`` pixels are known."""
    inputs = blank(config, len(lengths), seed)
    inputs.known[:] = np.arange(config.pixels) < np.array(lengths)[:, None]
    return inputs


def begun(
    config: ModelConfig, inputs: InputBatch, min_prefill: int, slots: list[int], count: int
) -> TritonDecoder:
    """Return a decoder whose slots are at their first unknown pixels."""
    decoder = TritonDecoder(network_for(config), count, min_prefill=min_prefill)
    decoder.begin(slots, inputs)
    decoder.synchronize()
    for slot, length in zip(slots, inputs.prefix_lengths.tolist(), strict=True):
        decoder.step([slot], length - int(decoder.positions[slot]))
    return decoder


def results(decoder: TritonDecoder, slots: list[int]) -> list[NDArray[np.float32]]:
    ring = decoder.buffers["ring"].transpose(0, 1).cpu().numpy()
    return [array[slots] for array in (decoder.bits, *attention_sums(decoder), ring)]


@interpreter_and_gpu
@parametrize_configs(GRID | ODD | SHAPES, "given", "grey")
def test_prefill_equals_steps(config: ModelConfig) -> None:
    """Bits, state and positions, and the pixels that are drawn afterwards."""
    T = config.pixels
    inputs, slots = known_prefixes(config, [T, T - 1 or T]), [2, 0]
    stepped = begun(config, inputs, T + 1, slots, 3)
    filled = begun(config, inputs, 1, slots, 3)
    assert filled.min_prefill == (1 if config.head_size <= 64 else math.inf)
    assert stepped.min_prefill == math.inf
    dtype = torch.bfloat16 if filled.precision == "bf16" else torch.float32
    assert np.array_equal(filled.positions[slots], inputs.prefix_lengths)
    for ours, theirs in zip(results(filled, slots), results(stepped, slots), strict=True):
        scale = max(1.0, float(np.abs(theirs).max(initial=0)))
        assert_close(torch.from_numpy(ours) / scale, torch.from_numpy(theirs) / scale, dtype)
    for decoder in (filled, stepped):
        decoder.step(slots, T)
        assert (decoder.positions[slots] == T).all()
    if dtype == torch.float32:  # in bf16 another value may be drawn
        assert_close(torch.from_numpy(filled.bits), torch.from_numpy(stepped.bits))
        assert np.array_equal(filled.canvas, stepped.canvas)


@interpreter_and_gpu
@every_shape
def test_same_bytes_in_any_pass(config: ModelConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image's bits and state do not depend on the other images, their lengths or the slots."""
    lengths = [config.pixels, 2, config.pixels - 2, 3]
    inputs = known_prefixes(config, lengths)
    together = begun(config, inputs, 2, [0, 1, 2, 3], 4)
    monkeypatch.setattr(prefill, "MAX_ROWS", 1)  # one image per pass
    single = begun(config, inputs, 2, [3, 0, 2, 1], 4)
    assert len(list(single._prefill.passes(np.array(lengths)))) == 4  # type: ignore[union-attr]
    for ours, theirs in zip(
        results(single, [3, 0, 2, 1]), results(together, [0, 1, 2, 3]), strict=True
    ):
        assert ours.tobytes() == theirs.tobytes()


def test_passes_hold_images_of_similar_lengths() -> None:
    """Rows are whole tiles of 64; an image that exceeds the rows of a pass has one of its own."""
    decoder = TritonDecoder(network_for(RGB), 3, min_prefill=1)
    assert decoder._prefill is not None
    passes = list(decoder._prefill.passes(np.array([1, 6, 2, 5, 3])))
    assert [one.tolist() for one in passes] == [[1, 3, 4], [2, 0]]
    large = replace(decoder._decode_config, pixels=10_000, width=100)
    assert prefill.scratch_rows(large, 1) == 30_016


@interpreter_and_gpu
@every_shape
def test_shorter_prefixes_are_stepped_over(config: ModelConfig) -> None:
    """Prefilling an image depends only on that image's known pixels."""
    inputs = known_prefixes(config, [3, 4])
    decoder = TritonDecoder(network_for(config), 2, min_prefill=4)
    decoder.begin([0, 1], inputs)
    assert decoder.positions.tolist() == [0, 0]  # the prefill is in flight
    assert decoder.scheduled_positions.tolist() == [0, 4]
    decoder.synchronize()
    assert decoder.positions.tolist() == [0, 4]
    assert TritonDecoder(network_for(config), 1).min_prefill == math.inf  # images are too small


@interpreter_and_gpu
def test_prefill_in_flight_among_launches() -> None:
    """A prefill and a replaced image between two launches: the same bytes as alone."""
    inputs = known_prefixes(CONV, [0, 4, 5])
    expected = []
    for image in range(3):
        alone = begun(CONV, inputs.select([image]), 4, [0], 1)
        alone.step([0], CONV.pixels)
        expected.append((alone.canvas[0].tobytes(), alone.bits[0].tobytes()))
    decoder = TritonDecoder(network_for(CONV), 2, min_prefill=4)
    decoder.begin([0], inputs.select([0]))
    decoder.launch([0], 2)
    decoder.begin([1], inputs.select([1]))
    decoder.launch([0, 1], 1)
    decoder.begin([1], inputs.select([2]))  # replaces an image whose prefill is in flight
    decoder.synchronize(remaining=2)
    assert decoder.positions.tolist() == [2, 0]
    decoder.synchronize(remaining=1)
    assert decoder.positions.tolist() == [3, 0]
    assert decoder.scheduled_positions.tolist() == [3, 5]
    decoder.launch(all_slots(decoder), CONV.pixels)
    decoder.synchronize()
    drawn = [(decoder.canvas[i].tobytes(), decoder.bits[i].tobytes()) for i in (0, 1)]
    assert drawn == [expected[0], expected[2]]


@interpreter_and_gpu
def test_guided_images_and_copies_continue_from_a_prefill() -> None:
    """The twin is prefilled without the label, and copies share the state."""
    inputs = known_prefixes(CONV, [4])
    inputs.label[:], inputs.guidance[:], inputs.twin[:] = 1, 2.0, 1
    decoders = [TritonDecoder(network_for(CONV), 4, min_prefill=n) for n in (4, 99)]
    for decoder in decoders:
        decoder.begin([0], inputs)
        decoder.step([0], 4 - int(decoder.scheduled_positions[0]))
        decoder.fork([0], [2], [3])
        assert decoder.positions.tolist() == [4] * 4
        decoder.step([0, 2], CONV.pixels)
    filled, stepped = decoders
    assert filled.canvas[0].tobytes() == filled.canvas[2].tobytes()
    assert filled.bits[0].tobytes() == filled.bits[2].tobytes()
    if filled.precision == "float32":  # in bf16 another value may be drawn
        assert np.array_equal(filled.canvas, stepped.canvas)
        assert_close(torch.from_numpy(filled.bits[0]), torch.from_numpy(stepped.bits[0]))


@interpreter_and_gpu
def test_memory_of_other_slots_is_neither_read_nor_written() -> None:
    inputs = known_prefixes(CONV, [4, 5])
    clean = begun(CONV, inputs, 1, [0, 1], 2)
    decoder = TritonDecoder(network_for(CONV), 4, min_prefill=1)
    assert decoder._prefill is not None
    scratch = decoder._prefill._buffers
    for name, buffer in scratch.items():
        if buffer.is_floating_point() and not name.startswith("zero"):
            buffer.fill_(torch.nan)
    if decoder.device.cuda:
        torch.cuda.synchronize()  # the decoder's stream does not wait for this one
    decoder.begin([1, 3], inputs)
    decoder.synchronize()
    for ours, theirs in zip(results(decoder, [1, 3])[:3], results(clean, [0, 1])[:3], strict=True):
        assert ours.tobytes() == theirs.tobytes()
    for name in ("kv", "z", "ring"):
        assert decoder.buffers[name][:, [0, 2]].isnan().all(), name
    decoder.step([1, 3], CONV.pixels)
    clean.step([0, 1], CONV.pixels)
    assert decoder.canvas[[1, 3]].tobytes() == clean.canvas.tobytes()
    assert decoder.bits[[1, 3]].tobytes() == clean.bits.tobytes()


@pytest.mark.skipif(not INTERPRETED, reason="on a device the decoder uses the fused kernel itself")
def test_the_fused_kernel_continues_from_a_prefill(tmp_path: Path) -> None:
    """In its emulator, with one and with three pixels left."""
    config = replace(
        PRESETS["mnist"], height=2, width=4, n_layers=1, d_model=128, n_heads=4, d_ff=128
    )
    network, inputs = network_for(config), known_prefixes(config, [7, 5])
    decoder = TritonDecoder(network, 2, min_prefill=1)
    decoder.begin([0, 1], inputs)
    state = {name: decoder.buffers[name] for name in ("positions", "kv", "z", "pending", "ring")}
    later = torch.from_numpy(~inputs.known)
    inputs.known[:] = True  # the same pixels, so that their bits can be compared
    launch_config = LaunchConfig(cluster=1, rows=8, warps=4, head_groups=2)
    stepped, filled = (
        draw(network, launch_config, inputs, [0, 1], tmp_path, [config.pixels], state=one)
        for one in (None, state)
    )
    assert filled.positions.tolist() == [config.pixels] * 2
    bits = [torch.from_numpy(one.bits)[later] for one in (filled, stepped)]
    assert_close(bits[0], bits[1], torch.bfloat16)
    # Eight steps: nothing is pending, and the sums hold all of them.
    for ours, theirs in ((filled.kv, stepped.kv), (filled.z, stepped.z)):
        scale = theirs.abs().max()
        assert_close(ours / scale, theirs / scale, torch.bfloat16)
