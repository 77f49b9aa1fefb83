"""Accuracy of the native decoder against float64, on every ISA and in every precision."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from scanline.kernels.native.abi import PRECISIONS, Precision
from scanline.kernels.native.cpu import cpu_isas
from scanline.model.checkpoint import SHIPPED_WEIGHTS, find_checkpoints, load_checkpoint
from scanline.model.config import ModelConfig
from scanline.model.data.published_sets import load_dataset
from scanline.model.decoders.base import InputBatch
from scanline.model.decoders.native import NativeDecoder
from tests.conftest import assert_close, tiny_config, use_fast_build
from tests.kernels.native.fixtures import (
    DTYPES,
    EMULATED,
    ERRORS,
    ODD_SIZES,
    every_kind,
    float64_outputs,
    float64_outputs_of,
    trace,
    use_emulation,
)
from tests.model.decoders.fixtures import (
    blank,
    masked,
    network_for,
    noise_of,
    scatter_seeds,
)
from tests.model.network.variants import FEW, every_variant

# Maximum change of bits/dim on real images by a precision.
BITS_PER_DIM_ERROR = 0.002


def check_against_float64(config: ModelConfig, precision: Precision, isa: str | None) -> None:
    inputs = masked(config, 3, seed=1)
    decoder = NativeDecoder(network_for(config), 3, 2, precision=precision, isa=isa)
    parameters, bits = trace(decoder, inputs)
    expected, expected_bits = float64_outputs(config, decoder.canvas, inputs)
    dtype = DTYPES[precision]
    if expected.size:
        error = np.abs(parameters - expected).max() / np.abs(expected).max()
        assert error <= ERRORS[precision]
    assert_close(torch.from_numpy(bits), torch.from_numpy(expected_bits), dtype)


@every_variant
def test_float32_matches_float64(config: ModelConfig) -> None:
    check_against_float64(config, "float32", None)


# Sizes in every precision; other options do not depend on it, so each has one precision.
SIZES_AND_OPTIONS = [
    pytest.param(
        config, precision, id=f"{name}-{precision}",
        marks=pytest.mark.broad if name in FEW and number % len(PRECISIONS) != other else (),
    )
    for number, (name, config) in enumerate((ODD_SIZES | FEW).items())
    for other, precision in enumerate(PRECISIONS)
]  # fmt: skip


@pytest.mark.parametrize(("config", "precision"), SIZES_AND_OPTIONS)
def test_every_isa_matches_float64(config: ModelConfig, precision: Precision, isa: str) -> None:
    check_against_float64(config, precision, isa)


@every_kind
def test_samples_match_the_heads(config: ModelConfig, isa: str) -> None:
    """Drawn values are those that the head's definition draws from the same parameters."""
    inputs = masked(config, 32, seed=2)
    scatter_seeds(inputs)
    inputs.known[:] = False
    network = network_for(config)
    decoder = NativeDecoder(network, 32, 2, isa=isa)
    parameters, _ = trace(decoder, inputs)
    uniforms = noise_of(inputs, config).reshape(32, config.steps, -1)
    equal = []
    for step in range(config.steps):
        values = network.head.sample(
            torch.from_numpy(parameters[:, step]),
            torch.from_numpy(uniforms[:, step].copy()),
            torch.from_numpy(inputs.temperature),
        )
        drawn = decoder.canvas.reshape(32, config.steps, -1)[:, step]
        equal.append(values.numpy() == drawn)
    # If the uniform is within rounding of the border between two values, either may be drawn.
    assert np.mean(equal) > 0.998


@pytest.mark.parametrize("log_scale", [9.0, -20.0])
def test_bits_of_extreme_log_scales(log_scale: float, isa: str) -> None:
    config = tiny_config(head="logistic_mixture", encoding="linear")
    network = deepcopy(network_for(config))
    with torch.no_grad():
        network.head.predictor.bias[20:30] = log_scale
    inputs = masked(config, 4, seed=0)
    inputs.known[:] = True
    _, bits = trace(NativeDecoder(network, 4, 1, precision="float32", isa=isa), inputs)
    _, wanted = float64_outputs_of(network, inputs.canvas, inputs)
    np.testing.assert_allclose(bits, wanted.reshape(bits.shape), rtol=1e-4)


def test_attention_with_vanishing_features(isa: str) -> None:
    """If all keys' features vanish, the denominator does not."""
    config = tiny_config()
    network = deepcopy(network_for(config))
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith("attention.key.bias"):
                parameter.fill_(-16.0)
    inputs = masked(config, 4, seed=0)
    inputs.known[:] = True
    parameters, _ = trace(NativeDecoder(network, 4, 1, precision="float32", isa=isa), inputs)
    wanted, _ = float64_outputs_of(network, inputs.canvas, inputs)
    assert np.abs(parameters - wanted).max() / np.abs(wanted).max() <= ERRORS["float32"]


def test_guided_samples_at_low_temperature_match_the_heads(isa: str) -> None:
    """Tiny unconditional probabilities must be accurate, because guidance divides by them."""
    config = tiny_config(
        channels=3, head="logistic_mixture", encoding="linear", classes=("cat", "dog")
    )
    count, guidance = 15, 3.0
    inputs = blank(config, count)
    scatter_seeds(inputs)
    inputs.label[:], inputs.guidance[:] = 1, guidance
    inputs.temperature[:] = np.resize(np.array([0.03, 0.005, 1e-4], np.float32), count)
    inputs.twin[:] = np.arange(count, 2 * count)
    decoder = NativeDecoder(network_for(config), 2 * count, 2, precision="float32", isa=isa)
    decoder.begin(np.arange(count), inputs)
    decoder.step(np.arange(count), config.pixels)
    canvas = decoder.canvas[:count]
    unconditional = replace(inputs, label=np.full(count, -1, np.int32))
    labelled, plain = (
        torch.from_numpy(float64_outputs(config, canvas, given)[0])
        for given in (inputs, unconditional)
    )
    uniforms = torch.from_numpy(noise_of(inputs, config).reshape(count, config.steps, -1))
    full = torch.ones(count, dtype=torch.float64)
    values = [
        network_for(config).head.sample(
            labelled[:, step],
            uniforms[:, step].double(),
            torch.from_numpy(inputs.temperature).double(),
            full,
            full * guidance,
            plain[:, step],
        )
        for step in range(config.steps)
    ]
    drawn = canvas.reshape(count, config.steps, -1)
    assert np.mean(torch.stack(values, 1).numpy() == drawn) > 0.99


def test_bits_per_dim_of_the_shipped_models(data_dir: Path) -> None:
    """Bits/dim are within 0.002 of the float32 reference on real images."""
    checked = 0
    for name, path in find_checkpoints(SHIPPED_WEIGHTS).items():
        checkpoint = load_checkpoint(path)
        model = checkpoint.model
        config = model.config
        dataset = "cifar10" if config.channels == 3 else "mnist"
        images = load_dataset(dataset, "test", data_dir).images[:6]
        assert images.shape[1:] == (config.height, config.width, config.channels), name
        canvas = images.reshape(len(images), config.pixels, config.channels)
        inputs = replace_known(blank(config, len(images)), canvas)
        with torch.no_grad():
            expected = model.bits(torch.from_numpy(canvas)).numpy()
        precision = checkpoint.native_precision
        decoder = NativeDecoder(model, len(images), precision=precision)
        slots = np.arange(len(images), dtype=np.int32)
        decoder.begin(slots.tolist(), inputs)
        difference = (decoder.bits.sum() - expected.sum()) / len(images) / config.dims
        assert abs(difference) <= BITS_PER_DIM_ERROR, name
        checked += 1
    assert checked == 2


def replace_known(inputs: InputBatch, canvas: NDArray[np.uint8]) -> InputBatch:
    label = np.full(len(canvas), -1, np.int32)
    return replace(inputs, canvas=canvas, known=np.ones_like(inputs.known), label=label)


@pytest.mark.parametrize("precision", ["int16", "int8", "int10"])
@pytest.mark.parametrize("sign", [1, -1])
def test_largest_integer_sums_fit_in_32_bits(precision: Precision, sign: int, isa: str) -> None:
    """All products of a sum are as large as possible and of the same sign."""
    config = tiny_config(d_model=288, d_ff=64, n_layers=1, activation="relu", head="categorical")
    network = network_for(config)
    weights = dict(network.named_parameters())
    with torch.no_grad():
        weights["blocks.0.norm2.weight"].zero_()
        weights["blocks.0.norm2.bias"].fill_(0.7)  # each product's input
        rows = torch.linspace(0.5, 1.5, 64)[:, None]
        weights["blocks.0.linear1.weight"].copy_(sign * rows.expand(64, 288))
        weights["blocks.0.linear1.bias"].fill_(0 if sign > 0 else 400)
    inputs = masked(config, 3, seed=1)
    decoder = NativeDecoder(network, 3, 1, precision=precision, isa=isa)
    parameters, _ = trace(decoder, inputs)
    expected, _ = float64_outputs_of(network, decoder.canvas, inputs)
    assert np.abs(parameters - expected).max() <= ERRORS[precision] * np.abs(expected).max()


def check_same_bytes(plain: NativeDecoder, decoder: NativeDecoder, inputs: InputBatch) -> None:
    expected, given = trace(plain, inputs), trace(decoder, inputs)
    assert decoder.canvas.tobytes() == plain.canvas.tobytes()
    assert [part.tobytes() for part in given] == [part.tobytes() for part in expected]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["int16", "int8", "int10"])
@pytest.mark.parametrize("config", ODD_SIZES.values(), ids=ODD_SIZES.keys())
def test_emulated_isas_give_the_same_bytes(
    emulated: str, config: ModelConfig, precision: Precision, emulation_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """With enough images for every number of rows in a tile."""
    images, base = 37 if emulated == "amx" else 7, EMULATED[emulated]
    network, inputs = network_for(config), masked(config, images, seed=1)
    plain = NativeDecoder(network, images, 1, precision=precision, isa=base)
    use_emulation(emulated, emulation_folder, monkeypatch)
    decoder = NativeDecoder(network, images, 1, precision=precision, isa=base)
    assert (plain.isa, decoder.isa) == (base, emulated)
    check_same_bytes(plain, decoder, inputs)


@pytest.mark.skipif("amx" not in cpu_isas(), reason="this CPU has no AMX, or may not use it")
@pytest.mark.parametrize("precision", ["int16", "int8", "int10"])
@pytest.mark.parametrize("config", ODD_SIZES.values(), ids=ODD_SIZES.keys())
def test_amx_gives_the_same_bytes_as_avx512(
    config: ModelConfig, precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, inputs = network_for(config), masked(config, 37, seed=1)
    decoder = NativeDecoder(network, 37, 1, precision=precision, isa="amx")
    use_fast_build("avx512bf16", monkeypatch)
    plain = NativeDecoder(network, 37, 1, precision=precision, isa="avx512bf16")
    check_same_bytes(plain, decoder, inputs)
