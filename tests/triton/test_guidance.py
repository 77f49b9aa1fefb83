"""Guidance, ``top_p`` and forks in the Triton decoder, under the interpreter or on a device.

``tests/decoders`` have what every backend promises; here are its essential cases, small enough for
the interpreter, and the sampling kernel alone beside the head that defines it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from scanline.kernels.cuda.decode_config import allocate, allocate_weights
from scanline.kernels.cuda.decode_plan import plan
from scanline.model.config import ModelConfig
from scanline.model.decoders.base import Decoder, InputBatch
from scanline.model.decoders.device import find_device
from scanline.model.decoders.native import NativeDecoder
from scanline.model.decoders.packing import decode_config_for, load_weights
from scanline.model.decoders.reference import ReferenceDecoder
from scanline.model.decoders.triton import TritonDecoder
from scanline.model.network import LinearTransformer
from tests.conftest import assert_close, tiny_config
from tests.model.decoders.fixtures import blank, masked, network_for, noise_of, scatter_seeds
from tests.triton.fixtures import some_first

INTERPRETED = bool(triton.knobs.runtime.interpret)
pytestmark = [] if INTERPRETED else [pytest.mark.gpu]

GREY = tiny_config(height=2, width=2, n_layers=1, classes=("cat", "dog"), short_conv="2x3")
RGB = replace(GREY, channels=3, head="logistic_mixture", encoding="linear", height=1)
SUBPIXEL = replace(RGB, order="subpixel", norm="post")
KINDS = {"grey": GREY, "rgb": RGB, "subpixel": SUBPIXEL}
every_kind = some_first(KINDS, *KINDS)
first_kind = some_first(KINDS, "grey")
HEADS = {
    "categorical": GREY,
    "categorical RGB": replace(GREY, channels=3),
    "mixture": replace(GREY, head="logistic_mixture"),
    "mixture RGB": RGB,
}
every_head = pytest.mark.parametrize("config", HEADS.values(), ids=HEADS.keys())


def sampled(
    network: LinearTransformer, parameters: Tensor, unconditional: Tensor, inputs: InputBatch
) -> NDArray[np.uint8]:
    """Draw the first step's values with the sampling kernel alone; twins follow their images."""
    s, device = decode_config_for(network.config, "float32"), find_device()
    weights, count = allocate_weights(s, device), len(parameters)
    load_weights(weights, network)
    buffers = allocate(s, 2 * count, device)
    slots = torch.arange(2 * count).view(2, count).t().flatten()  # an image, its twin
    guided = inputs.guidance != 1
    for name in ("temperature", "top_p", "guidance", "canvas"):
        buffers[name][:count] = torch.from_numpy(getattr(inputs, name)).to(device)
    for name in ("seed", "particle"):
        words = getattr(inputs, name).view(np.int64)
        buffers[name][:count] = torch.from_numpy(words).to(device)
    for name in ("positions", "bits", "known"):
        buffers[name].zero_()
    buffers["twin"].fill_(-1)
    twins = np.where(guided, np.arange(count, 2 * count), -1)
    buffers["twin"][:count] = torch.from_numpy(twins).to(device, torch.int32)
    buffers["slots"].fill_(-1)
    there = torch.from_numpy(np.stack([np.ones_like(guided), guided], 1).ravel())
    buffers["slots"][: 2 * count] = torch.where(there, slots, -1).to(device, torch.int32)
    buffers["parameters"].fill_(torch.nan)
    both = torch.stack([parameters, unconditional], 1).flatten(0, 1)
    buffers["parameters"][: 2 * count] = both.to(device)
    launch = plan(s, weights, buffers)[-1]
    assert launch.name == "sample"
    launch.run(2 * count, 0)
    values: NDArray[np.uint8] = buffers["canvas"].cpu().numpy()[:, 0]
    twin_values = values[count:][guided]
    assert np.array_equal(twin_values, values[:count][guided])
    assert np.array_equal(buffers["positions"].cpu().numpy()[count:], guided.astype(np.int32))
    return values[:count]


def head_parameters(config: ModelConfig, rows: int, seed: int) -> Tensor:
    """Give parameters of distributions that are neither flat nor one value."""
    generator = torch.Generator().manual_seed(seed)
    parameters = torch.randn(rows, config.head_outputs, generator=generator)
    if config.head == "categorical":
        parameters[..., 40:] -= 4
    else:
        parameters[:, 10 * (1 + config.channels) : 10 * (1 + 2 * config.channels)] -= 2
    return parameters


@every_head
def test_the_kernel_draws_what_the_head_draws(config: ModelConfig) -> None:
    """From the same parameters and uniforms the same values, in every mixture of shapes."""
    network = network_for(config)
    count = 10
    inputs = blank(config, count)
    scatter_seeds(inputs)
    inputs.temperature[:] = np.resize(np.array([1, 0.7, 0, 1.3], np.float32), count)
    inputs.top_p[:] = np.resize(np.array([1, 0.5, 0.02], np.float32), count)
    inputs.guidance[:] = np.resize(np.array([1, 2.5, 0, 1, 10], np.float32), count)
    parameters, unconditional = (head_parameters(config, count, seed) for seed in (1, 2))
    parameters[4:6] = parameters[4:6].round()  # many equal weights
    unconditional[4:6] = unconditional[4:6].round()
    parameters[8] = 0
    expected = network.head.sample(
        parameters, torch.from_numpy(noise_of(inputs, config)[:, 0]),
        torch.from_numpy(inputs.temperature), torch.from_numpy(inputs.top_p),
        torch.from_numpy(inputs.guidance), unconditional,
    )  # fmt: skip
    drawn = sampled(network, parameters, unconditional, inputs)
    assert np.array_equal(drawn, expected.numpy())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, under the interpreter
@every_head
def test_what_is_no_number_stays_in_range(config: ModelConfig) -> None:
    network, inputs = network_for(config), blank(config, 4)
    inputs.top_p[:] = [0.5, 1e-30, 1, 0.5]
    inputs.guidance[:] = [1, 1, 10, 0]
    parameters, unconditional = (head_parameters(config, 4, seed) for seed in (1, 2))
    parameters[:2] = torch.nan
    parameters[2] *= 1e30
    unconditional[3] = torch.inf
    sampled(network, parameters, unconditional, inputs)  # twins and neighbours are checked there


@pytest.mark.parametrize("head", ["categorical", pytest.param("mixture", marks=pytest.mark.broad)])
@pytest.mark.parametrize(("g", "top_p", "temperature"), [(1, 0.6, 1), (2.5, 0.8, 0.7)])
def test_frequencies_are_those_of_the_definition(
    head: str, g: float, top_p: float, temperature: float
) -> None:
    """The first channel's values of one distribution, drawn again and again, by chi-square."""
    config, count = HEADS[head], 48
    network, inputs = network_for(config), blank(config, count)
    inputs.temperature[:], inputs.top_p[:], inputs.guidance[:] = temperature, top_p, g
    given, without = (head_parameters(config, 1, seed) for seed in (1, 2))
    if config.head == "categorical":
        for parameters in (given, without):
            parameters[:, 9:] -= 20  # few values, each drawn often
            parameters *= 0.5
    drawn = sampled(network, given.expand(count, -1), without.expand(count, -1), inputs)
    with torch.no_grad():
        nothing = torch.zeros(1, config.step_channels, dtype=torch.long)
        heat = torch.tensor([temperature], dtype=torch.float64)
        logs = [
            network.head.double().log_probs(one.double(), 0, nothing, heat)[0].numpy()
            for one in (given, without)
        ]
    weights = np.exp(g * logs[0] + (1 - g) * logs[1])
    weights /= weights.sum()
    order = np.argsort(-weights, kind="stable")
    kept = np.cumsum(weights[order]) - weights[order] < top_p
    expected = np.zeros(256)
    expected[order[kept]] = count * weights[order[kept]] / weights[order[kept]].sum()
    seen = np.bincount(drawn[:, 0], minlength=256)
    assert not seen[expected == 0].any()
    # Neighbouring values are counted together until eight are expected.
    groups = (np.cumsum(expected) / 8).astype(int)
    counts = [(seen[groups == i].sum(), expected[groups == i].sum()) for i in np.unique(groups)]
    square = sum((mine - wished) ** 2 / wished for mine, wished in counts if wished > 1)
    freedom = len(counts) - 1
    assert freedom >= 2
    assert square < freedom + 5 * np.sqrt(2 * freedom)


def shaped(config: ModelConfig, count: int) -> InputBatch:
    """Give images of which every other is guided, and some are cut; twins come after all."""
    inputs = masked(config, count, seed=5)
    inputs.label[:] = np.arange(count) % 2
    inputs.temperature[:] = np.resize(np.array([1, 0.8, 0], np.float32), count)
    inputs.guidance[:] = np.resize(np.array([2, 1, 0.5, 1], np.float32), count)
    inputs.top_p[:] = np.resize(np.array([1, 0.5, 0.9], np.float32), count)
    inputs.twin[:] = np.where(inputs.guidance != 1, np.arange(count, 2 * count), -1)
    return inputs


@every_kind
def test_guided_images_are_those_of_the_reference(config: ModelConfig) -> None:
    """Pixels, and bits, which are those of the labelled model unguided; twins go along."""
    network, inputs, count = network_for(config), shaped(config, 3), 3
    decoders = ReferenceDecoder(network, 6), TritonDecoder(network, 6, precision="float32")
    for decoder in decoders:
        decoder.begin(np.arange(count), inputs)
        decoder.step(np.arange(count), config.pixels)
    reference, mine = decoders
    assert np.array_equal(mine.canvas[:count], reference.canvas[:count])
    assert mine.positions.tolist() == reference.positions.tolist()
    with torch.no_grad():
        labels = torch.from_numpy(inputs.label).long()
        bits = network.bits(torch.from_numpy(mine.canvas[:count]), labels)
    assert_close(torch.from_numpy(mine.bits[:count]), bits, torch.float32)
    for image, twin in enumerate(inputs.twin):
        if twin >= 0:
            assert np.array_equal(mine.canvas[twin], mine.canvas[image])
            assert np.array_equal(mine.bits[twin], mine.bits[image])


@first_kind
def test_guided_images_among_others_draw_the_same_bytes(config: ModelConfig) -> None:
    """In any slots and company, begun at any time; a twin's slot has been another's before."""
    network, count = network_for(config), 3
    inputs = shaped(config, count)
    expected = []
    alone = TritonDecoder(network, 2)
    for row in range(count):
        one = inputs.select([row])
        one.twin[:] = np.where(one.guidance != 1, 1, -1)
        alone.begin([0], one)
        alone.step([0], config.pixels)
        expected.append((alone.canvas[0].tobytes(), alone.bits[0].tobytes()))
    decoder = TritonDecoder(network, 8)
    slots = np.array([6, 1, 4])
    inputs.twin[:] = np.where(inputs.guidance != 1, [0, -1, 7], -1)
    decoder.begin([0, 7], blank(config, 2))
    decoder.step([7, 0], 1)
    decoder.begin(slots[1:], inputs.select([1, 2]))
    decoder.step([4, -1, 1], 1)
    decoder.begin(slots[:1], inputs.select([0]))
    decoder.step([1, 4, 6], 1)
    decoder.step([6, 4, 1], config.pixels)
    for slot, bytes_alone in zip(slots, expected, strict=True):
        assert (decoder.canvas[slot].tobytes(), decoder.bits[slot].tobytes()) == bytes_alone


@first_kind
def test_a_fork_goes_on_with_the_bytes_of_its_source(config: ModelConfig) -> None:
    """To two slots, twins with them, early and late; then each at its own pace."""
    network, inputs = network_for(config), masked(config, 1, seed=3)
    inputs.label[:], inputs.guidance[:], inputs.twin[:] = 1, 2.0, 1
    inputs.known[:, 0] = False
    decoder = TritonDecoder(network, 6)
    for forked_after in {1, config.pixels - 1}:
        decoder.begin([0], inputs)
        decoder.step([0], forked_after)
        decoder.fork([0, 0], [3, 4], [5, 2])
        decoder.step([3], 1)
        decoder.step([0, 4, 3], config.pixels)
        for copies in ([3, 4], [5, 2, 1]):
            for copy in copies:
                assert np.array_equal(decoder.canvas[copy], decoder.canvas[0])
                assert np.array_equal(decoder.bits[copy], decoder.bits[0])
        for sums in (decoder.kv, decoder.z):
            assert sums[3].tobytes() == sums[4].tobytes() == sums[0].tobytes()
            assert sums[5].tobytes() == sums[2].tobytes() == sums[1].tobytes()
    assert (decoder.positions == config.pixels).all()


def test_a_fork_with_other_noise_draws_something_else() -> None:
    network, inputs = network_for(GREY), blank(GREY, 1)
    decoder = TritonDecoder(network, 2)
    decoder.begin([0], inputs)
    decoder.step([0], 1)
    decoder.fork([0], [1])
    decoder.reseed([1], [1])
    decoder.step([0, 1], GREY.pixels)
    assert np.array_equal(decoder.canvas[0, 0], decoder.canvas[1, 0])
    assert not np.array_equal(decoder.canvas[0], decoder.canvas[1])


def test_a_slot_is_not_named_beside_the_image_whose_twin_it_is() -> None:
    inputs = blank(GREY, 1)
    inputs.label[:], inputs.guidance[:], inputs.twin[:] = 1, 2.0, 1
    decoder = TritonDecoder(network_for(GREY), 2)
    decoder.begin([0], inputs)
    with pytest.raises(ValueError, match="slots must be -1 or different"):
        decoder.step([0, 1], 1)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, under the interpreter
@some_first({name: HEADS[name] for name in ("categorical", "mixture")}, "categorical")
def test_the_coldest_are_drawn_as_by_definition(config: ModelConfig) -> None:
    """Though what such a temperature divides is beyond all numbers."""
    network, cold = network_for(config), [1e-9, 1e-40]
    shapes = [(t, top_p, g) for t in cold for top_p, g in ((1, 1), (0.9, 1), (1, 3), (0.5, 10))]
    inputs = blank(config, len(shapes))
    scatter_seeds(inputs)
    inputs.temperature[:], inputs.top_p[:], inputs.guidance[:] = zip(*shapes, strict=True)
    guided = np.flatnonzero(inputs.guidance != 1)
    inputs.label[:] = 1
    inputs.twin[guided] = np.arange(len(guided)) + len(shapes)
    drawn = []
    slots = len(shapes) + len(guided)
    decoders: list[Decoder] = [
        ReferenceDecoder(network, slots),
        TritonDecoder(network, slots, precision="float32"),
    ]
    if INTERPRETED:  # on a device there may be no compiler for it
        decoders.append(NativeDecoder(network, slots, precision="float32"))
    for decoder in decoders:
        decoder.begin(range(len(shapes)), inputs)
        decoder.step(range(len(shapes)), config.pixels)
        drawn.append(decoder.canvas[: len(shapes)])
    for one in drawn[1:]:
        assert np.array_equal(one, drawn[0])
