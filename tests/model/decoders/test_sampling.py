"""Guidance, ``top_p`` and forks, for every backend."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from scanline.model.config import ModelConfig
from scanline.model.decoders.base import InputBatch
from scanline.model.decoders.factory import create_decoder
from scanline.model.network import LinearTransformer
from tests.conftest import assert_close, random_network, tiny_config
from tests.model.decoders.fixtures import (
    KINDS,
    LAYERS,
    PRECISION,
    begin_after_known_prefix,
    blank,
    masked,
    network_for,
    on_backends,
    state_of,
)

IMAGES = {"reference": 100}  # drawn one after another, so fewer
MANY = 300
SMALL = {
    "grey": tiny_config(height=2, width=2, classes=("cat", "dog")),
    "rgb": tiny_config(
        height=2, width=2, channels=3, head="logistic_mixture", encoding="linear",
        classes=("cat", "dog"), short_conv="2x3",
    ),
    "softmax": tiny_config(height=2, width=2, classes=("cat", "dog"), attention="softmax"),
}  # fmt: skip


def sharpened(config: ModelConfig) -> LinearTransformer:
    """Return a network that draws few values, different ones for each label."""
    network = random_network(config, dtype=torch.float32)
    with torch.no_grad():
        if config.head == "categorical":
            network.head.predictor.weight.mul_(0.4)
            network.head.predictor.bias[5:] -= 25  # five likely values
        assert network.label_embedding is not None
        network.label_embedding.weight.mul_(2)
    return network


def exact_distribution(
    network: LinearTransformer, canvas: NDArray[np.uint8], pixel: int, g: float, top_p: float,
    temperature: float,
) -> NDArray[np.float64]:  # fmt: skip
    """Compute the distribution of a pixel's first channel by definition, in float64."""
    exact = LinearTransformer(network.config).double().eval()
    exact.load_state_dict(network.state_dict())
    with torch.no_grad():
        pixels = torch.from_numpy(canvas[None])
        heat = torch.tensor([temperature], dtype=torch.float64)
        nothing = torch.zeros(1, network.config.step_channels, dtype=torch.long)
        logs = [
            exact.head.log_probs(exact(pixels, torch.tensor([label]))[:, pixel], 0, nothing, heat)
            for label in (1, -1)
        ]

    def likeliest(weights: NDArray[np.float64], share: float) -> NDArray[np.float64]:
        weights = weights / weights.sum()
        order = np.argsort(-weights, kind="stable")
        kept = np.cumsum(weights[order]) - weights[order] < share
        result: NDArray[np.float64] = np.zeros(256)
        result[order[kept]] = weights[order[kept]]
        result /= result.sum()
        return result

    labelled, plain = (log[0].numpy() for log in logs)
    weights = np.exp(g * labelled + (1 - g) * plain)
    if g > 1:  # guidance raises only values that are likely with the label
        weights = weights * (likeliest(np.exp(labelled), 1 - (1 - top_p) / 4) > 0)
    return likeliest(weights, top_p)


def guided(config: ModelConfig, count: int, g: float, top_p: float = 1.0) -> InputBatch:
    """Return inputs of class 1 for slots 0 to ``count`` - 1, with twins in the slots after."""
    inputs = blank(config, count)
    inputs.label[:] = 1
    inputs.guidance[:], inputs.top_p[:] = g, top_p
    if g != 1:
        inputs.twin[:] = np.arange(count, 2 * count)
    return inputs


SHAPES = [(2.0, 0.8, 0.7), (1.0, 0.6, 1.0), (2.5, 1.0, 1.0), (0.0, 0.8, 0.8), (8.0, 0.9, 1.0)]


FREQUENCIES = {
    "-".join(map(str, (name, *shape))): (config, *shape)
    for name, config in SMALL.items()
    for shape in (SHAPES[:1] if name == "softmax" else SHAPES)
}


@on_backends(
    "config,g,top_p,temperature", FREQUENCIES,
    [name for name in FREQUENCIES if name.startswith("grey") or name.endswith("2.0-0.8-0.7")],
)  # fmt: skip
def test_frequencies_match_the_definition(
    config: ModelConfig, g: float, top_p: float, temperature: float, backend: str
) -> None:
    """Chi-square test of the third pixel, after two known ones."""
    network, images = sharpened(config), IMAGES.get(backend, MANY)
    inputs = guided(config, images, g, top_p)
    inputs.known[:, :2] = True
    inputs.canvas[:, :2] = [[3], [1]]
    inputs.temperature[:] = temperature
    decoder = create_decoder(network, 2 * images, backend)
    begin_after_known_prefix(decoder, range(images), inputs)
    decoder.step(np.arange(images), 1)
    drawn = np.bincount(decoder.canvas[:images, 2, 0], minlength=256)
    expected = images * exact_distribution(network, inputs.canvas[0], 2, g, top_p, temperature)
    bins = [np.flatnonzero(expected >= 8), np.flatnonzero(expected < 8)]
    counts = [(drawn[i], expected[i]) for i in bins[0]]
    counts.append((drawn[bins[1]].sum(), expected[bins[1]].sum()))
    assert len(counts) > 2
    square = sum((seen - wished) ** 2 / max(wished, 1.0) for seen, wished in counts)
    freedom = len(counts) - 1
    assert square < freedom + 5 * np.sqrt(2 * freedom) + 10


@pytest.mark.parametrize("config", SMALL.values(), ids=SMALL.keys())
def test_guidance_changes_samples_but_not_bits(config: ModelConfig, backend: str) -> None:
    network = sharpened(config)
    decoder = create_decoder(network, 16, backend)
    inputs = guided(config, 8, 3.0)
    decoder.begin(np.arange(8), inputs)
    decoder.step(np.arange(8), config.pixels)
    assert (decoder.positions == config.pixels).all()
    assert np.array_equal(decoder.canvas[:8], decoder.canvas[8:])
    assert np.array_equal(decoder.bits[:8], decoder.bits[8:])
    with torch.no_grad():
        bits = network.bits(torch.from_numpy(decoder.canvas[:8]), torch.ones(8, dtype=torch.long))
    assert_close(torch.from_numpy(decoder.bits[:8].copy()), bits, PRECISION[backend])
    plain = create_decoder(network, 8, backend)
    plain.begin(np.arange(8), guided(config, 8, 1.0))
    plain.step(np.arange(8), config.pixels)
    assert not np.array_equal(plain.canvas, decoder.canvas[:8])


@pytest.mark.parametrize("config", SMALL.values(), ids=SMALL.keys())
def test_greedy_guided_images_take_the_most_likely_value(config: ModelConfig, backend: str) -> None:
    network, inputs = sharpened(config), guided(config, 2, 2.0)
    inputs.temperature[:], inputs.top_p[:] = 0, [1, 0.5]
    decoder = create_decoder(network, 4, backend)
    decoder.begin([0, 1], inputs)
    decoder.step([0, 1], 1)
    likeliest = [
        int(exact_distribution(network, inputs.canvas[0], 0, 2.0, p, 1.0).argmax())
        for p in (1.0, 0.5)
    ]
    assert decoder.canvas[:2, 0, 0].tolist() == likeliest


def test_guided_images_are_independent_of_the_batch(backend: str) -> None:
    """Plain and guided images in any slots, batch and number of pixels per call."""
    config = KINDS["grey"]
    network, count = network_for(config), 10
    inputs = masked(config, count, seed=5)
    inputs.label[:] = np.arange(count) % 2
    inputs.guidance[:] = [1, 2, 0.5, 1, 3, 1, 2, 2, 1, 1.5]
    inputs.top_p[:] = [1, 1, 0.9, 0.5, 1, 1, 0.7, 1, 1, 0.95]
    expected = []
    for row in range(count):
        alone = create_decoder(network, 2, backend)
        one = inputs.select([row])
        one.twin[:] = np.where(one.guidance != 1, 1, -1)
        alone.begin([0], one)
        alone.step([0], config.pixels)
        expected.append((alone.canvas[0].copy(), alone.bits[0].copy()))
    generator = np.random.default_rng(1)
    decoder = create_decoder(network, 32, backend)
    slots = generator.permutation(32)
    inputs.twin[:] = np.where(inputs.guidance != 1, slots[count : 2 * count], -1)
    mine = slots[:count]
    decoder.begin(mine[:4], inputs.select(np.arange(4)))
    decoder.step(mine[:4], 3)
    decoder.begin(mine[4:], inputs.select(np.arange(4, count)))
    while (decoder.positions[mine] < config.pixels).any():
        decoder.step(generator.permutation(mine), int(generator.integers(1, 6)))
    for row, slot in enumerate(mine):
        assert np.array_equal(decoder.canvas[slot], expected[row][0])
        assert np.array_equal(decoder.bits[slot], expected[row][1])


FORKS = {
    f"{name}-{guide}-{twice}": (config, guide, twice)
    for name, config in LAYERS.items()
    for guide, twice in ([(0, 0), (1, 1)] if config.classes else [(0, 0), (0, 1)])
}


@on_backends("config,guide,twice", FORKS, ["grey-1-1", "rgb-0-1", "softmax-1-1", "lsh-0-0"])
def test_fork_continues_with_the_bytes_of_its_source(
    config: ModelConfig, guide: int, twice: int, backend: str
) -> None:
    """Fork at random pixels, to one slot or two, guided or not; copies do not affect sources."""
    network, inputs = network_for(config), masked(config, 2, seed=3)
    if guide:
        inputs.label[:], inputs.guidance[:], inputs.twin[:] = 1, 2.0, [2, 3]
    generator = np.random.default_rng((guide, twice))
    alone = create_decoder(network, 4, backend)
    alone.begin([0, 1], inputs)
    alone.step([0, 1], config.pixels)
    decoder = create_decoder(network, 8, backend)
    decoder.begin([0, 1], inputs)
    decoder.step([0, 1], int(generator.integers(0, config.pixels)))
    copies = [4, 5] if twice else [4]
    decoder.fork([1] * len(copies), copies, [6, 7][: len(copies)] if guide else None)
    decoder.step(copies[:1], 3)  # not in step with the others
    decoder.step([0, *copies[1:], 1, copies[0]], config.pixels)
    for slot in (1, *copies):
        assert np.array_equal(decoder.canvas[slot], alone.canvas[1])
        assert np.array_equal(decoder.bits[slot], alone.bits[1])
    assert np.array_equal(decoder.canvas[0], alone.canvas[0])


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_tiny_temperatures_take_the_most_likely_value(backend: str, top_p: float) -> None:
    config = KINDS["grey"]
    inputs = blank(config, 4)
    inputs.temperature[:], inputs.top_p[:], inputs.label[:] = (0, 1e-30, 1e-38, 1e-40), top_p, 1
    decoder = create_decoder(network_for(config), 4, backend)
    decoder.begin(range(4), inputs)
    decoder.step(range(4), config.pixels)
    assert all(np.array_equal(decoder.canvas[0], one) for one in decoder.canvas[1:])


def test_reseeded_fork_draws_other_pixels(backend: str) -> None:
    config = KINDS["grey"]
    network, inputs = network_for(config), blank(config, 1)
    decoder = create_decoder(network, 2, backend)
    decoder.begin([0], inputs)
    decoder.step([0], 5)
    decoder.fork([0], [1])
    decoder.reseed([-1, 1, -1], [7, 1, 8])
    assert decoder.inputs.particle.tolist() == [0, 1]
    decoder.step([0, 1], config.pixels)
    assert np.array_equal(decoder.canvas[0, :5], decoder.canvas[1, :5])
    assert not np.array_equal(decoder.canvas[0, 5:], decoder.canvas[1, 5:])


@pytest.mark.parametrize(
    ("sources", "targets", "twins"),
    [
        ([0], [0], None), ([0], [3], None), ([0, 1], [2, 2], None), ([0], [1, 2], None),
        ([-1], [2], None), ([0], [-1], None), ([0], [2], [1]), ([0, 1], [1, 2], None),
        ([3], [2], None), ([-2], [2], None),
    ],
)  # fmt: skip
def test_invalid_forks_are_rejected(
    sources: list[int], targets: list[int], twins: list[int] | None, backend: str
) -> None:
    decoder = create_decoder(network_for(KINDS["grey"]), 3, backend)
    decoder.begin([0, 1], blank(KINDS["grey"], 2))
    before = [part.copy() for part in state_of(decoder)]
    with pytest.raises(ValueError, match=r"target|twin|slots must be"):
        decoder.fork(sources, targets, twins)
    for old, new in zip(before, state_of(decoder), strict=True):
        assert np.array_equal(old, new)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("top_p", 0.0, "top_p must be above 0"), ("top_p", 1.5, "top_p must be above 0"),
        ("top_p", np.nan, "top_p must be above 0"), ("guidance", -1.0, "guidance must be from 0"),
        ("guidance", 11.0, "guidance must be"), ("guidance", np.nan, "guidance must be"),
        ("guidance", 2.0, "need a twin slot"), ("twin", 1, "need a twin slot"),
    ],
)  # fmt: skip
def test_out_of_range_sampling_inputs_are_rejected(
    field: str, value: float, message: str, backend: str
) -> None:
    config = KINDS["grey"]
    decoder, inputs = create_decoder(network_for(config), 2, backend), blank(config, 1)
    inputs.label[:] = 1
    getattr(inputs, field)[:] = value
    with pytest.raises(ValueError, match=message):
        decoder.begin([0], inputs)
    inputs = blank(config, 1)
    inputs.guidance[:], inputs.twin[:], inputs.label[:] = 2, 1, -1
    with pytest.raises(ValueError, match="guidance needs a label"):
        decoder.begin([0], inputs)


def test_guidance_below_one_has_no_cut_before_it(backend: str) -> None:
    config = SMALL["grey"]
    network, images = sharpened(config), IMAGES.get(backend, MANY)
    inputs = guided(config, images, 0.5, 0.3)
    inputs.known[:, :2] = True
    inputs.canvas[:, :2] = [[3], [1]]
    decoder = create_decoder(network, 2 * images, backend)
    begin_after_known_prefix(decoder, range(images), inputs)
    decoder.step(np.arange(images), 1)
    drawn = np.bincount(decoder.canvas[:images, 2, 0], minlength=256)
    expected = images * exact_distribution(network, inputs.canvas[0], 2, 0.5, 0.3, 1.0)
    assert drawn[expected == 0].sum() == 0
    assert np.abs(drawn - expected).sum() < images / 5


@on_backends("top_p,most", {"0.02": (0.02, 5), "0.9": (0.9, 230), "0.5": (0.5, 127)}, ["0.02"])
def test_top_p_breaks_ties_by_the_lower_value(top_p: float, most: int, backend: str) -> None:
    """With 256 equally likely values, the lowest ones with that share are kept."""
    config, images = SMALL["grey"], 100 + most
    network = random_network(config, dtype=torch.float32)
    with torch.no_grad():
        network.head.predictor.weight.zero_()
        network.head.predictor.bias.zero_()
    inputs = guided(config, images, 1.0, top_p)
    inputs.temperature[0] = 0
    decoder = create_decoder(network, images, backend)
    decoder.begin(np.arange(images), inputs)
    decoder.step(np.arange(images), config.pixels)
    assert set(decoder.canvas.ravel().tolist()) == set(range(most + 1))
    assert (decoder.canvas[0] == 0).all()
