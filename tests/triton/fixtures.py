"""Helpers of the Triton decoder tests: small networks, and comparisons with float64.

Networks and images are tiny, because the interpreter takes a millisecond per operation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import triton
from numpy.typing import NDArray

from scanline.kernels.cuda.decode_config import DecodeConfig
from scanline.model.config import ModelConfig
from scanline.model.decoders.base import InputBatch
from scanline.model.decoders.packing import DevicePrecision, decode_config_for
from scanline.model.decoders.triton import TritonDecoder
from tests.conftest import TOLERANCES, assert_close, random_network, tiny_config
from tests.model.decoders.fixtures import (
    attention_sums,
    masked,
    network_for,
    noise_of,
    scatter_seeds,
)
from tests.model.network.variants import FEW

INTERPRETED = bool(triton.knobs.runtime.interpret)
CUDA = torch.cuda.is_available() and not INTERPRETED
gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not CUDA, reason="needs a CUDA device without TRITON_INTERPRET"),
]
# For tests that run in the interpreter and, marked gpu, on a device.
interpreter_and_gpu = pytest.mark.skipif(False, reason="") if INTERPRETED else pytest.mark.gpu
# Variants in which all pairs of options occur.
GRID = {
    name: replace(
        config, height=2 if config.steps_per_pixel == 1 else 1, width=3, n_layers=1 + i % 2
    )
    for i, (name, config) in enumerate(FEW.items())
}
ODD = {
    # Two tiles of the residual stream, the second one incomplete; heads that are no power of two.
    "wide": tiny_config(height=1, width=2, d_model=72, n_heads=3, d_ff=70, norm="post"),
    "heads of 70": tiny_config(height=1, width=2, d_model=70, n_heads=1, n_layers=1),
    "heads of 1": tiny_config(height=1, width=1, d_model=7, n_heads=7, d_ff=3, n_layers=1),
    "given": tiny_config(
        height=1, width=3, input="previous", order="subpixel", head="logistic_mixture",
        positions="sinusoidal", norm="post", start="given", first_value=200, channels=3,
        n_layers=1,
    ),
    # Row lengths that are no power of two.
    "convolved, small d_ff": tiny_config(
        height=3, width=2, n_layers=2, short_conv="2x3", d_model=48, n_heads=3, d_ff=20
    ),
}  # fmt: skip
SMALL = tiny_config(height=2, width=2, n_layers=1, classes=("cat", "dog"), short_conv="2x3")
RGB = tiny_config(
    height=1, width=2, n_layers=1, n_heads=1, channels=3, order="subpixel",
    head="logistic_mixture", norm="post", positions="sinusoidal",
)  # fmt: skip


def parametrize_configs(configs: dict[str, ModelConfig], *names: str) -> pytest.MarkDecorator:
    """Parametrise ``config`` with the named configs, and with the others marked ``broad``."""
    params = [
        pytest.param(config, marks=() if name in names else pytest.mark.broad, id=name)
        for name, config in configs.items()
    ]
    return pytest.mark.parametrize("config", params)


# Two networks with different options. The interpreter draws one of them, unless ``--broad``.
PAIR = {"grey": SMALL, "rgb": RGB}
either, grey, rgb = (
    parametrize_configs(PAIR, *names) for names in (("grey", "rgb"), ("grey",), ("rgb",))
)


def sample_inputs(config: ModelConfig, count: int = 3, seed: int = 0) -> InputBatch:
    """Return inputs with some known pixels and several temperatures."""
    inputs = masked(config, count, seed)
    inputs.temperature[:] = np.resize(np.array([0.7, 1.0, 1.3], np.float32), count)
    return inputs


def all_slots(decoder: TritonDecoder) -> NDArray[np.int32]:
    return np.arange(decoder.max_slots, dtype=np.int32)


def float64_results(
    config: ModelConfig, canvas: NDArray[np.uint8], inputs: InputBatch
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Return the network's parameters, bits and final state in float64."""
    network = random_network(config)  # float64 parameters of the same seed
    network.load_state_dict(network_for(config).state_dict())
    labels, pixels = torch.from_numpy(inputs.label).long(), torch.from_numpy(canvas)
    with torch.no_grad():
        parameters = network(pixels, labels)
        bits = network.bits_from(parameters, pixels)
        states, _ = network.prefill(pixels, torch.full((len(canvas),), config.pixels), labels)
    sums = [torch.stack([state[f"attention.{x}"] for state in states], 1) for x in ("kv", "z")]
    return parameters, bits, sums


def check_decoder(config: ModelConfig, precision: DevicePrecision) -> None:
    """Draw two images pixel by pixel, and compare all results with float64."""
    network, inputs = network_for(config), sample_inputs(config, 2)
    scatter_seeds(inputs)
    inputs.temperature[0] = 0
    inputs.known[:, 0] = False  # so that no pixel is prefilled
    decoder = TritonDecoder(network, 2, precision=precision)
    decoder.begin([0, 1], inputs)
    last = []  # parameters of each pixel's last step
    for pixel in range(config.pixels):
        decoder.step([0, 1], 1)
        assert decoder.positions.tolist() == [pixel + 1] * 2
        last.append(decoder.buffers["parameters"][:2].cpu().clone())
    parameters = torch.stack(last, 1)
    expected, expected_bits, state = float64_results(config, decoder.canvas, inputs)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    given = int(config.start == "given")
    steps = torch.arange(config.pixels) * config.steps_per_pixel + config.steps_per_pixel - 1
    steps = steps[steps >= given]
    if len(steps):
        theirs = expected[:, steps - given]
        ours = parameters[:, -len(steps) :]
        assert (ours - theirs).abs().max() <= TOLERANCES[dtype]["rtol"] * theirs.abs().max()
    assert_close(torch.from_numpy(decoder.bits), expected_bits, dtype)
    for sums, theirs in zip(attention_sums(decoder), state, strict=True):
        error = np.abs(sums - theirs.numpy()).max()
        assert error <= TOLERANCES[dtype]["rtol"] * theirs.abs().max()
    assert np.array_equal(decoder.canvas[inputs.known], inputs.canvas[inputs.known])
    for step in steps.tolist():  # the values must be the head's samples from these parameters
        pixel, subpixel = divmod(step, config.steps_per_pixel)
        noise = noise_of(inputs, config)[:, pixel]
        noise = noise.reshape(2, config.steps_per_pixel, -1)[:, subpixel]
        expected_values = network.head.sample(
            parameters[:, pixel], torch.from_numpy(noise.copy()),
            torch.from_numpy(inputs.temperature),
        ).numpy()  # fmt: skip
        unknown = ~inputs.known[:, pixel]
        values = decoder.canvas.reshape(2, config.steps, -1)[:, step]
        assert np.array_equal(values[unknown], expected_values[unknown])


def check_launches_in_flight(config: ModelConfig, precision: DevicePrecision) -> None:
    """Launch several calls, replace an image meanwhile, and then synchronise."""
    network, inputs = network_for(config), sample_inputs(config)
    expected = []
    alone = TritonDecoder(network, 1, precision=precision)
    for image in range(3):
        alone.begin([0], inputs.select([image]))
        alone.step([0], config.pixels)
        expected.append((alone.canvas.tobytes(), alone.bits.tobytes()))
    decoder = TritonDecoder(network, 2, precision=precision)
    decoder.begin([0, 1], inputs.select([0, 1]))
    canvas, positions = decoder.canvas.copy(), decoder.positions.copy()
    decoder.launch([0, 1], 1)
    decoder.launch([1, 0], 1)
    assert np.array_equal(decoder.positions, positions)
    assert np.array_equal(decoder.canvas, canvas)
    one, two = (np.minimum(positions + n, config.pixels) for n in (1, 2))
    assert np.array_equal(decoder.scheduled_positions, two)
    decoder.synchronize(remaining=1)
    assert np.array_equal(decoder.positions, one)
    later = np.arange(config.pixels) >= one[:, None]
    assert np.array_equal(decoder.canvas[later], canvas[later])
    decoder.begin([0], inputs.select([2]))
    decoder.launch([0, 1], config.pixels)
    decoder.synchronize()
    assert decoder.positions.tolist() == [config.pixels] * 2
    drawn = [(decoder.canvas[i].tobytes(), decoder.bits[i].tobytes()) for i in (0, 1)]
    assert drawn == [expected[2], expected[1]]


def set_write_interval(interval: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let new decoders write the attention state every ``interval``-th step."""

    def config_for(config: ModelConfig, precision: DevicePrecision) -> DecodeConfig:
        return replace(decode_config_for(config, precision), write_interval=interval)

    monkeypatch.setattr("scanline.model.decoders.triton.decode_config_for", config_for)


def draw(decoder: TritonDecoder, inputs: InputBatch, n: int = 10**6) -> list[bytes]:
    """Draw all images in calls of ``n`` pixels; return canvas, bits and state as bytes."""
    decoder.begin(list(range(len(inputs.canvas))), inputs)
    for _ in range(0, decoder.config.pixels, n):
        decoder.step(all_slots(decoder), n)
    assert (decoder.positions == decoder.config.pixels).all()
    return [array.tobytes() for array in results_of(decoder)]


def results_of(decoder: TritonDecoder) -> list[NDArray[Any]]:
    """Return the canvas, the bits and the attention sums of all slots."""
    return [decoder.canvas, decoder.bits, *attention_sums(decoder)]
