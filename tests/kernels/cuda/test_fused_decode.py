"""Tests of the fused decode kernel in the CPU emulator.

The tests on a GPU are in ``test_fused_decode_on_gpu.py``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scanline.kernels.cuda.fused.fused_decode import (
    LAUNCH_CONFIGS,
    LaunchConfig,
    mma_fragments,
)
from scanline.model.config import PRESETS, ModelConfig
from scanline.model.decoders.base import InputBatch
from scanline.model.decoders.packing import decode_config_for
from scanline.model.decoders.reference import ReferenceDecoder
from scanline.model.network import LinearTransformer
from tests.conftest import random_network
from tests.emulator.emulator import draw, sample
from tests.model.decoders.fixtures import network_for
from tests.model.decoders.sampling_case import sampling_case, twins_of


def small(preset: str, **fields: Any) -> ModelConfig:
    """Return a preset with few pixels and features, and other changes."""
    sizes = {"height": 2, "width": 3, "n_layers": 2, "d_ff": 128, "d_model": 128, "n_heads": 4}
    return replace(PRESETS[preset], **sizes | fields)


CONFIGS = {
    "paper": small("mnist-paper"),
    "paper, subpixels": small("cifar10-paper", height=1, n_layers=1),
    "given": small("mnist-paper", start="given", first_value=9),
    "grey": small("mnist"),
    "rgb": small("cifar10", height=1, encoding="table"),
    "rgb, linear": small("cifar10", height=1),
}
ONE_BLOCK = LaunchConfig(cluster=1, rows=8, warps=4, head_groups=2)
TWO_STATES = LaunchConfig(cluster=1, rows=16, warps=8, head_groups=1, states_per_warp=2)
FOUR_BLOCKS = LaunchConfig(cluster=4, rows=8, warps=6)
STAGED = LaunchConfig(cluster=8, rows=8, warps=8, stage_weights=True)
MANY_ROWS = LaunchConfig(cluster=1, rows=48, warps=4, head_groups=2, states_per_warp=3)


@pytest.fixture(scope="module")
def folder(shared_folder: Path) -> Path:
    return shared_folder / "emulator"


def images(config: ModelConfig) -> tuple[ReferenceDecoder, list[int]]:
    """Return a reference decoder with five images, and the slots of the kernel's rows.

    One image is guided, so that its twin follows it; the others have other sampling options.
    """
    network = random_network(config)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(parameter.bfloat16().float())
        if config.head == "logistic_mixture":  # broad distributions, for which bf16 is exact enough
            for parameter in network.head.predictor.parameters():
                parameter.mul_(0.25)
    decoder = ReferenceDecoder(network.float().eval(), 6)
    inputs, rng = InputBatch.empty(config, 5), np.random.default_rng(1)
    inputs.seed[:] = np.arange(5) * 2**61 + 7
    inputs.particle[2] = 3
    inputs.known[:] = rng.random(inputs.known.shape) < 0.2
    inputs.canvas[:] = rng.integers(0, 256, inputs.canvas.shape)
    inputs.temperature[:] = [1, 0, 0.8, 1, 1.3]
    inputs.top_p[2] = 0.8
    pair = list[int]()
    if config.classes:
        inputs.label[:] = [1, -1, 2, 3, 0]
        inputs.twin[4], inputs.guidance[4], inputs.top_p[4] = 5, 2.5, 0.9
        pair = [5]
    decoder.begin(np.arange(5), inputs)
    return decoder, [4, *pair, 0, 2, 1]


# A build takes many seconds, so most networks are drawn with two launch configurations only.
LAUNCHES = {
    "paper": (FOUR_BLOCKS, STAGED),
    "paper, subpixels": (TWO_STATES, FOUR_BLOCKS),
    "given": (ONE_BLOCK, FOUR_BLOCKS),
    "grey": (ONE_BLOCK, FOUR_BLOCKS, STAGED),
    "rgb": (ONE_BLOCK, FOUR_BLOCKS),
    "rgb, linear": (ONE_BLOCK, STAGED),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        # Other configs cover the options of "given".
        pytest.param(name, marks=pytest.mark.broad if name == "given" else ())
        for name in CONFIGS
    ],
)
def test_agrees_with_the_reference(name: str, folder: Path, pytestconfig: pytest.Config) -> None:
    """Up to bf16 rounding, and with the same bytes in all launch configurations."""
    config, launch_configs = CONFIGS[name], LAUNCHES[name]
    if pytestconfig.getoption("--broad") and config.n_layers > 1:
        launch_configs = (ONE_BLOCK, FOUR_BLOCKS, STAGED)
    reference, rows = images(config)
    images_only = [row for row in rows if row != 5]  # without the twin
    T = config.pixels
    drawn = [
        draw(reference.model, launch_config, reference.inputs, rows, folder, calls)
        for launch_config, calls in zip(launch_configs, ([T], [1, T - 1], [T, 1]), strict=False)
    ]
    one = drawn[0]
    for other in drawn[1:]:
        assert one.canvas.tobytes() == other.canvas.tobytes()
        assert one.bits[rows].tobytes() == other.bits[rows].tobytes()
        assert torch.equal(one.kv, other.kv)
        assert torch.equal(one.z, other.z)
    labels, canvas = (
        torch.from_numpy(reference.inputs.label[images_only]).long(),
        one.canvas[images_only],
    )
    with torch.no_grad():
        pixels = torch.from_numpy(canvas)
        exact = reference.model.bits_from(reference.model(pixels, labels), pixels)
        states, _ = reference.model.prefill(pixels, torch.full((len(images_only),), T), labels)
    torch.testing.assert_close(
        torch.from_numpy(one.bits[images_only]),
        exact.reshape(len(images_only), T),
        rtol=0.03,
        atol=0.06,
    )
    s = decode_config_for(config)
    steps = T * s.steps_per_pixel - s.first_step
    for i in range(steps % s.write_interval):  # add the pending entries
        key, value = one.pending[..., i, :, :].float().unbind(-2)
        one.z.add_(key)
        one.kv.add_(key.unsqueeze(-1) * value.unsqueeze(-2))
    for name, found in (("kv", one.kv), ("z", one.z)):
        sums = torch.stack([state[f"attention.{name}"] for state in states])
        assert (found[:, images_only] - sums).norm() < 0.03 * sums.norm()
    reference.step(np.array(images_only), T)
    difference = canvas.astype(int) - reference.canvas[images_only].reshape(canvas.shape)
    assert (np.abs(difference) <= 8).mean() > 0.75
    assert one.positions[rows].tolist() == [T] * len(rows)


@pytest.mark.parametrize(
    "config",
    [
        CONFIGS["grey"], CONFIGS["rgb, linear"],
        pytest.param(replace(CONFIGS["grey"], head="logistic_mixture"), marks=pytest.mark.broad),
    ],
    ids=["categorical", "mixture RGB", "mixture"],
)  # fmt: skip
def test_samples_the_same_values_as_the_head(config: ModelConfig, folder: Path) -> None:
    case = sampling_case(network_for(config))
    values, twins = sample(config, ONE_BLOCK, case, folder), twins_of(case.inputs)
    assert np.array_equal(values[: len(twins)], case.values)
    assert np.array_equal(values[twins[twins >= 0]], case.values[twins >= 0])


@pytest.mark.parametrize(
    "launch_config", [ONE_BLOCK, pytest.param(STAGED, marks=pytest.mark.broad)], ids=str
)
def test_linear_encoding_is_more_exact_than_bf16(launch_config: LaunchConfig, folder: Path) -> None:
    """A constant added to all weights must cancel, because normalised inputs sum to zero."""
    config = CONFIGS["rgb, linear"]
    network = random_network(config).float().eval()
    weights = dict(network.named_parameters())
    with torch.no_grad():
        for norm in ("blocks.0.norm2", "norm"):
            weights[f"{norm}.weight"].fill_(1.0)
            weights[f"{norm}.bias"].zero_()
        taps = weights["blocks.0.conv2.weight"].zero_()
        taps[0] = 1.0  # the tap at the step itself
        weights["head.predictor.weight"].mul_(0.25)
        for matrix in ("blocks.0.linear1.weight", "head.predictor.weight"):
            weights[matrix].add_(8.0)
    inputs, rng = InputBatch.empty(config, 6), np.random.default_rng(3)
    inputs.known[:] = True
    inputs.canvas[:] = rng.integers(0, 256, inputs.canvas.shape)
    pixels = torch.from_numpy(inputs.canvas.reshape(6, config.pixels, 3))
    with torch.no_grad():
        exact = network.bits_from(network(pixels, torch.full((6,), -1)), pixels)
    bits, s = exact.reshape(6, -1).numpy(), decode_config_for(config)
    split_error, bf16_error = (
        np.abs(
            draw(network, launch_config, inputs, range(6), folder, [config.pixels], x).bits - bits
        )
        for x in (s, replace(s, linear_encoding=False))
    )
    assert split_error.mean() < 0.1 * bf16_error.mean()


def many_images(config: ModelConfig, count: int) -> tuple[LinearTransformer, InputBatch]:
    """Return a network and the inputs of images with known pixels and, if it has any, classes."""
    inputs, rng = InputBatch.empty(config, count), np.random.default_rng(2)
    inputs.seed[:] = np.arange(count)
    inputs.known[:] = rng.random(inputs.known.shape) < 0.3
    inputs.canvas[:] = rng.integers(0, 256, inputs.canvas.shape)
    if config.classes:
        inputs.label[:] = np.arange(count) % len(config.classes)
    return random_network(config).float().eval(), inputs


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grey", pytest.param("paper", marks=pytest.mark.broad)])
def test_many_rows_draw_the_same_bytes_as_few(name: str, folder: Path) -> None:
    """More rows than a warp processes at a time, in two blocks."""
    config, count = CONFIGS[name], 60
    network, inputs = many_images(config, count)
    rows = np.random.default_rng(1).permutation(count).tolist()
    many = draw(network, MANY_ROWS, inputs, rows, folder, [2, config.pixels - 2])
    some = rows[:3] + rows[-4:]
    few = draw(network, STAGED, inputs, some, folder, [config.pixels])
    assert many.canvas[some].tobytes() == few.canvas[some].tobytes()
    assert many.bits[some].tobytes() == few.bits[some].tobytes()
    assert torch.equal(many.kv[:, some], few.kv[:, some])
    assert many.bits.all(axis=1).all()


@pytest.mark.slow
def test_slices_of_hidden_features_draw_the_same_bytes(folder: Path) -> None:
    """Five slices of 128 features, as for the widened ``cifar10``."""
    reference, rows = images(small("cifar10", height=1, n_layers=1, d_ff=640))
    sliced = replace(ONE_BLOCK, ff_slices=5)
    whole, slices = (
        draw(reference.model, one, reference.inputs, rows, folder, [reference.config.pixels])
        for one in (FOUR_BLOCKS, sliced)
    )
    assert whole.canvas.tobytes() == slices.canvas.tobytes()
    assert whole.bits[rows].tobytes() == slices.bits[rows].tobytes()
    assert whole.bits[rows].all()


@pytest.mark.broad
@pytest.mark.slow
def test_configs_of_a_device_draw_the_same_bytes(folder: Path) -> None:
    """With 16 rows per cluster, which use two tiles of rows, and with 32 rows per block."""
    config, count = small("mnist", height=1, d_ff=512), 30
    network, inputs = many_images(config, count)
    launch_configs = [x for x in LAUNCH_CONFIGS if x.fits(decode_config_for(config))]
    chosen = [x for x in launch_configs if x.rows == 16 or (x.cluster, x.rows) == (1, 32)]
    assert {x.cluster for x in chosen} == {1, 2, 4}
    one, *others = (draw(network, x, inputs, range(count), folder, [config.pixels]) for x in chosen)
    assert one.bits.all()
    for other in others:
        assert one.canvas.tobytes() == other.canvas.tobytes()
        assert one.bits.tobytes() == other.bits.tobytes()
        assert torch.equal(one.kv, other.kv)
        assert torch.equal(one.z, other.z)


def test_rows_without_active_image_are_not_modified(folder: Path) -> None:
    """Empty rows between others and at the end, and finished images."""
    config = CONFIGS["grey"]
    reference, _ = images(config)
    some = draw(
        reference.model, FOUR_BLOCKS, reference.inputs, [-1, 2, -1, 0], folder, [config.pixels, 2]
    )
    alone = draw(reference.model, FOUR_BLOCKS, reference.inputs, [0], folder, [config.pixels])
    assert some.canvas[0].tobytes() == alone.canvas[0].tobytes()
    assert some.positions.tolist() == [config.pixels, 0, config.pixels, 0, 0, 0]
    assert not some.kv[:, [1, 3, 4, 5]].any()


def test_mma_fragments() -> None:
    """The elements of lane 4 g + t, as in the PTX ISA for operand A of mma.m16n8k16."""
    weight = torch.arange(32 * 48).view(32, 48)
    parts = mma_fragments(weight)
    assert parts.shape == (2, 3, 32, 8)
    g, t = 5, 2
    rows, columns = (g, g, g + 8, g + 8, g, g, g + 8, g + 8), (0, 1, 0, 1, 8, 9, 8, 9)
    expected = [16 + row for row in rows], [32 + 2 * t + column for column in columns]
    assert torch.equal(parts[1, 2, 4 * g + t], weight[expected])
