"""Tests of guidance, ``top_p`` and forks in the Triton decoder.

``tests/model/decoders`` tests all backends. These are the essential cases, small enough for the
interpreter, and comparisons of the sampling kernel with the head.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from scanline.kernels.cuda.buffers import allocate_buffers, allocate_weights
from scanline.kernels.cuda.decode_plan import plan
from scanline.model.config import ModelConfig
from scanline.model.decoders.base import Decoder, InputBatch
from scanline.model.decoders.device import find_device
from scanline.model.decoders.native import NativeDecoder
from scanline.model.decoders.packing import decode_config_for, load_weights
from scanline.model.decoders.reference import ReferenceDecoder
from scanline.model.decoders.triton import TritonDecoder
from scanline.model.network import LinearTransformer
from tests.conftest import assert_close
from tests.model.decoders.fixtures import (
    attention_sums,
    blank,
    masked,
    network_for,
    scatter_seeds,
)
from tests.model.decoders.sampling_case import head_parameters, rows_of, sampling_case, twins_of
from tests.triton.fixtures import INTERPRETED, interpreter_and_gpu, parametrize_configs
from tests.triton.fixtures import SMALL as GREY

pytestmark = interpreter_and_gpu

RGB = replace(GREY, channels=3, head="logistic_mixture", encoding="linear", height=1)
SUBPIXEL = replace(RGB, order="subpixel", norm="post", positions="sinusoidal", short_conv="none")
KINDS = {"grey": GREY, "rgb": RGB, "subpixel": SUBPIXEL}
first_kind = parametrize_configs(KINDS, "grey")
HEADS = {
    "categorical": GREY,
    "mixture": replace(GREY, head="logistic_mixture"),
    "mixture RGB": RGB,
}
every_head = pytest.mark.parametrize("config", HEADS.values(), ids=HEADS.keys())


def run_sampling_kernel(
    network: LinearTransformer, parameters: Tensor, unconditional: Tensor, inputs: InputBatch
) -> NDArray[np.uint8]:
    """Sample the first step's values with the sampling kernel; twins follow their images."""
    s, device = decode_config_for(network.config, "float32"), find_device()
    weights, count = allocate_weights(s, device), len(parameters)
    load_weights(weights, network)
    buffers = allocate_buffers(s, 2 * count, device)
    slots, rows = rows_of(inputs, parameters, unconditional)
    guided = inputs.guidance != 1
    for name in ("positions", "bits", "known"):
        buffers[name].zero_()
    for name in ("twin", "slots"):
        buffers[name].fill_(-1)
    for name in (field.name for field in fields(InputBatch)):
        array = twins_of(inputs) if name == "twin" else getattr(inputs, name)
        array = array.view(np.int64) if array.dtype == np.uint64 else array
        buffers[name][:count] = torch.from_numpy(array).to(device)
    buffers["slots"][: 2 * count] = torch.from_numpy(slots).to(device)
    buffers["parameters"].fill_(torch.nan)
    buffers["parameters"][: 2 * count] = rows.to(device)
    launch = plan(s, weights, buffers)[-1]
    assert launch.name == "sample"
    launch.run(2 * count, 0)
    values: NDArray[np.uint8] = buffers["canvas"].cpu().numpy()[:, 0]
    twin_values = values[count:][guided]
    assert np.array_equal(twin_values, values[:count][guided])
    assert np.array_equal(buffers["positions"].cpu().numpy()[count:], guided.astype(np.int32))
    return values[:count]


@every_head
def test_kernel_samples_the_same_values_as_the_head(config: ModelConfig) -> None:
    network = network_for(config)
    inputs, parameters, unconditional, expected = sampling_case(network)
    values = run_sampling_kernel(network, parameters, unconditional, inputs)
    assert np.array_equal(values, expected)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # from numpy in the interpreter
@every_head
def test_nan_and_infinity_stay_in_range(config: ModelConfig) -> None:
    network, inputs = network_for(config), blank(config, 4)
    inputs.top_p[:] = [0.5, 1e-30, 1, 0.5]
    inputs.guidance[:] = [1, 1, 10, 0]
    parameters, unconditional = (head_parameters(config, 4, seed) for seed in (1, 2))
    parameters[:2] = torch.nan
    parameters[2] *= 1e30
    unconditional[3] = torch.inf
    run_sampling_kernel(network, parameters, unconditional, inputs)  # checks twins and neighbours


def guided_inputs(config: ModelConfig, count: int) -> InputBatch:
    """Return inputs with guidance for every other image and top-p for some; twins come last."""
    inputs = masked(config, count, seed=5)
    inputs.label[:] = np.arange(count) % 2
    inputs.temperature[:] = np.resize(np.array([1, 0.8, 0], np.float32), count)
    inputs.guidance[:] = np.resize(np.array([2, 1, 0.5, 1], np.float32), count)
    inputs.top_p[:] = np.resize(np.array([1, 0.5, 0.9], np.float32), count)
    inputs.twin[:] = np.where(inputs.guidance != 1, np.arange(count, 2 * count), -1)
    return inputs


@parametrize_configs(KINDS, "grey", "subpixel")
def test_guided_images_equal_the_reference(config: ModelConfig) -> None:
    """Bits are those of the conditional model without guidance. Twins get the same values."""
    network, inputs, count = network_for(config), guided_inputs(config, 3), 3
    decoders = ReferenceDecoder(network, 6), TritonDecoder(network, 6, precision="float32")
    for decoder in decoders:
        decoder.begin(np.arange(count), inputs)
        decoder.step(np.arange(count), config.pixels)
    reference, decoder = decoders
    assert np.array_equal(decoder.canvas[:count], reference.canvas[:count])
    assert decoder.positions.tolist() == reference.positions.tolist()
    with torch.no_grad():
        labels = torch.from_numpy(inputs.label).long()
        bits = network.bits(torch.from_numpy(decoder.canvas[:count]), labels)
    assert_close(torch.from_numpy(decoder.bits[:count]), bits, torch.float32)
    for image, twin in enumerate(inputs.twin):
        if twin >= 0:
            assert np.array_equal(decoder.canvas[twin], decoder.canvas[image])
            assert np.array_equal(decoder.bits[twin], decoder.bits[image])


@first_kind
def test_guided_images_have_the_same_bytes_in_any_batch(config: ModelConfig) -> None:
    """In any slots, started at any time; a twin's slot was used by another image before."""
    network, count = network_for(config), 3
    inputs = guided_inputs(config, count)
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
def test_fork_continues_with_the_bytes_of_its_source(config: ModelConfig) -> None:
    """Forks to two slots with twins, early and late, which then advance separately."""
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
        for sums in attention_sums(decoder):
            assert sums[3].tobytes() == sums[4].tobytes() == sums[0].tobytes()
            assert sums[5].tobytes() == sums[2].tobytes() == sums[1].tobytes()
    assert (decoder.positions == config.pixels).all()


def test_reseeded_fork_draws_other_values() -> None:
    network, inputs = network_for(GREY), blank(GREY, 1)
    decoder = TritonDecoder(network, 2)
    decoder.begin([0], inputs)
    decoder.step([0], 1)
    decoder.fork([0], [1])
    decoder.reseed([1], [1])
    decoder.step([0, 1], GREY.pixels)
    assert np.array_equal(decoder.canvas[0, 0], decoder.canvas[1, 0])
    assert not np.array_equal(decoder.canvas[0], decoder.canvas[1])


def test_twin_slot_cannot_be_stepped_with_its_image() -> None:
    inputs = blank(GREY, 1)
    inputs.label[:], inputs.guidance[:], inputs.twin[:] = 1, 2.0, 1
    decoder = TritonDecoder(network_for(GREY), 2)
    decoder.begin([0], inputs)
    with pytest.raises(ValueError, match="slots must be -1 or different"):
        decoder.step([0, 1], 1)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # from numpy in the interpreter
@parametrize_configs({name: HEADS[name] for name in ("categorical", "mixture")}, "categorical")
def test_tiny_temperatures_equal_the_reference(config: ModelConfig) -> None:
    """The division by the temperature overflows."""
    config = replace(config, height=1)
    network, temperatures = network_for(config), [1e-9, 1e-40]
    options = [
        (t, top_p, g) for t in temperatures for top_p, g in ((1, 1), (0.9, 1), (1, 3), (0.5, 10))
    ]
    inputs = blank(config, len(options))
    scatter_seeds(inputs)
    inputs.temperature[:], inputs.top_p[:], inputs.guidance[:] = zip(*options, strict=True)
    guided = np.flatnonzero(inputs.guidance != 1)
    inputs.label[:] = 1
    inputs.twin[guided] = np.arange(len(guided)) + len(options)
    drawn = []
    slots = len(options) + len(guided)
    decoders: list[Decoder] = [
        ReferenceDecoder(network, slots),
        TritonDecoder(network, slots, precision="float32"),
    ]
    if INTERPRETED:  # the GPU machine may have no compiler
        decoders.append(NativeDecoder(network, slots, precision="float32"))
    for decoder in decoders:
        decoder.begin(range(len(options)), inputs)
        decoder.step(range(len(options)), config.pixels)
        drawn.append(decoder.canvas[: len(options)])
    for one in drawn[1:]:
        assert np.array_equal(one, drawn[0])
