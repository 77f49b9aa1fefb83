"""Tests of the fused decode kernel on a GPU."""

from __future__ import annotations

import itertools
import math
from dataclasses import fields, replace
from functools import partial

import numpy as np
import pytest
import torch

from scanline.kernels.cuda.fused.fused_decode import LAUNCH_CONFIGS, unsupported_reason
from scanline.model.bench.timing import check_decoder
from scanline.model.config import PRESETS
from scanline.model.decoders.base import BackendError, InputBatch
from scanline.model.decoders.packing import decode_config_for
from scanline.model.decoders.triton import TritonDecoder
from scanline.model.network import LinearTransformer
from tests.conftest import random_network
from tests.model.decoders.fixtures import attention_sums

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SUPPORTED = [
    name
    for name, config in PRESETS.items()
    if unsupported_reason(decode_config_for(config)) is None
]
every_preset = pytest.mark.parametrize("name", SUPPORTED)


def network_for(name: str, height: int = 3) -> LinearTransformer:
    return random_network(replace(PRESETS[name], height=height, n_layers=3)).float().eval()


def random_inputs(network: LinearTransformer, count: int) -> InputBatch:
    """Return inputs with all sampling options; every third image is guided if there are classes."""
    config, rng = network.config, np.random.default_rng(count)
    inputs = InputBatch.empty(config, count)
    inputs.seed[:] = np.arange(count) + 5
    inputs.known[:] = rng.random(inputs.known.shape) < 0.1
    inputs.canvas[:] = rng.integers(0, 256, inputs.canvas.shape)
    inputs.temperature[1::4] = 0
    inputs.top_p[2::5] = 0.8
    if config.classes:
        inputs.label[:] = np.arange(count) % len(config.classes)
        inputs.twin[::3] = count + np.arange(len(inputs.twin[::3]))
        inputs.guidance[::3] = 3
    return inputs


def draw(decoder: TritonDecoder, inputs: InputBatch, calls: tuple[int, ...]) -> list[bytes]:
    slots = np.arange(len(inputs.seed), dtype=np.int32)
    decoder.begin(slots, inputs)
    for pixels in calls:
        decoder.step(slots, pixels)
    return [(decoder.canvas[i].tobytes() + decoder.bits[i].tobytes()) for i in slots]


@every_preset
def test_fused_kernel_is_the_default(name: str) -> None:
    network = network_for(name)
    assert TritonDecoder(network, 1).variant.endswith(" fused")
    for unfused in (
        TritonDecoder(network, 1, fused=False),
        TritonDecoder(network, 1, graphs=False),
    ):
        assert not unfused.variant.endswith(" fused")


@every_preset
def test_agrees_with_the_reference(name: str) -> None:
    torch.manual_seed(0)
    check_decoder(LinearTransformer(PRESETS[name]).eval(), partial(TritonDecoder, fused=True))


@every_preset
def test_all_launch_configs_draw_the_same_bytes(name: str) -> None:
    network = network_for(name)
    T, inputs = network.config.pixels, random_inputs(network, 30)
    config = decode_config_for(network.config)
    launch_configs = [x for x in LAUNCH_CONFIGS if x.fits(config)]
    drawn = [
        draw(TritonDecoder(network, 40, launch_configs=[launch_config]), inputs, calls)
        for launch_config, calls in zip(
            launch_configs, itertools.cycle([(T,), (1, T), (5, 1, T)]), strict=False
        )
    ]
    assert all(other == drawn[0] for other in drawn[1:])


@every_preset
def test_same_bytes_alone_and_among_thousands(name: str) -> None:
    network = network_for(name, height=1)
    T, inputs = network.config.pixels, random_inputs(network, 8_500)
    many = draw(TritonDecoder(network, 12_000), inputs, (T,))
    inputs = random_inputs(network, 8_500)
    for i in (0, 1, 2, 4_321, 8_499):
        one = InputBatch(
            **{field.name: getattr(inputs, field.name)[[i]] for field in fields(InputBatch)}
        )
        one.twin[:] = np.where(one.twin >= 0, 1, -1)
        assert draw(TritonDecoder(network, 2), one, (T,)) == [many[i]]


@every_preset
def test_close_to_the_triton_kernels(name: str) -> None:
    """Rounding differs. Once an image differs in a value, the rest is not comparable."""
    network = with_broad_distributions(network_for(name))
    fused, unfused = (TritonDecoder(network, 12, fused=fused) for fused in (True, False))
    check_close(fused, unfused, random_inputs(network, 8), unknown=0)


@every_preset
def test_continues_from_a_prefill(name: str) -> None:
    """A prefill rounds differently from steps."""
    network = with_broad_distributions(network_for(name))
    filled, stepped = (
        TritonDecoder(network, 12, fused=True, min_prefill=pixels) for pixels in (64, 10**6)
    )
    assert filled.min_prefill == 64
    assert stepped.min_prefill == math.inf
    check_close(filled, stepped, random_inputs(network, 8), unknown=70)


def with_broad_distributions(network: LinearTransformer) -> LinearTransformer:
    """Broaden a network's mixtures, so that bf16 is exact enough for their bits."""
    if network.config.head == "logistic_mixture":
        with torch.no_grad():
            for parameter in network.head.predictor.parameters():
                parameter.mul_(0.25)
    return network


def check_close(
    one: TritonDecoder, other: TritonDecoder, inputs: InputBatch, *, unknown: int
) -> None:
    """Draw images with a single unknown pixel, and compare those in which it is the same."""
    inputs.known[:] = True
    inputs.known[:, unknown] = False
    for decoder in (one, other):
        draw(decoder, inputs, (one.config.pixels,))
    n = len(inputs.seed)
    same = (one.canvas[:n, unknown] == other.canvas[:n, unknown]).reshape(n, -1).all(1)
    assert same.sum() >= n // 2
    np.testing.assert_allclose(one.bits[:n][same], other.bits[:n][same], rtol=0.03, atol=0.06)
    for ours, theirs in zip(attention_sums(one), attention_sums(other), strict=True):
        error = np.linalg.norm(ours[:n][same] - theirs[:n][same])
        assert error <= 0.02 * np.linalg.norm(theirs[:n][same])


def test_unsupported_networks_and_options_raise() -> None:
    network = random_network(replace(PRESETS["mnist"], height=1, n_heads=2))
    with pytest.raises(
        BackendError, match="unavailable for this network: the head size must be 32"
    ):
        TritonDecoder(network, 1, fused=True)
    with pytest.raises(ValueError, match="cannot be combined"):
        TritonDecoder(network, 1, fused=True, graphs=False)
