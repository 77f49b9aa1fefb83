"""A layer as two kernels, the state and all else: the definition again, where it can be had."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch

from scanline.kernels.cuda import block
from scanline.kernels.cuda import decode as triton_decode
from scanline.kernels.cuda.sizes import COMPILED, allocate, allocate_weights
from scanline.model.config import PRESETS, ModelConfig
from scanline.model.decoders.contract import BackendError
from scanline.model.decoders.packing import sizes_of
from scanline.model.decoders.triton import TritonDecoder
from tests.conftest import tiny_config
from tests.decoders.fixtures import network_of
from tests.triton.fixtures import GRID, ODD, check, draw, exact, gpu, some, some_first

RELU = next(name for name, config in GRID.items() if config.activation == "relu")
MIXED = tiny_config(
    height=2, width=2, n_layers=3, channels=3, head="logistic_mixture", encoding="linear",
    short_conv="2x3",
)  # fmt: skip


@some_first(GRID | ODD, "convolved, narrow between", "RGB mixture", "given", RELU)
def test_float32_agrees_with_float64(config: ModelConfig) -> None:
    check(config, "float32", blocks=True)


def test_a_layer_whose_products_differ_is_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the first is in bf16 where intensities come in by a linear map."""
    monkeypatch.setattr(triton_decode, "takes", lambda s, layer: layer > 0)
    check(MIXED, "float32", blocks=True)


@pytest.mark.parametrize("name", COMPILED)
def test_which_layers_are_blocks(name: str) -> None:
    s = replace(COMPILED[name], layers=3)
    apart = 1 if s.linear else 0
    assert [block.takes(s, layer) for layer in range(3)] == [layer >= apart for layer in range(3)]
    memory = allocate_weights(s, "meta"), allocate(s, 64, "meta")
    names = [launch.name for launch in triton_decode.plan(s, *memory, blocks=True)]
    expected = [f"{layer}.{what}" for layer in range(apart, 3) for what in ("state", "block")]
    assert names[-len(expected) - 2 :] == [*expected, "head", "sample"]
    assert sum(name.endswith("block") for name in names) == 3 - apart


H100, GAMING = 227 << 10, 99 << 10  # bytes that a block of threads may share


@pytest.mark.parametrize(
    ("changes", "shared", "reason"),
    [
        ({}, H100, None), ({}, GAMING, None), ({"dtype": torch.float32}, None, None),
        ({"d_model": 256}, H100, None), ({"linear": True}, H100, None),
        ({"d_model": 512}, H100, "of 512 features, and those of blocks of 256 at most"),
        ({"dtype": torch.float32}, H100, "float32, and blocks in bf16"),
        ({"d_model": 256}, GAMING, "256 features take 164,864 bytes of shared memory, not 101,376"),
        ({"linear": True, "layers": 1}, H100, "float32 in one layer and bf16 in others"),
        # Its stream would wait for a norm.
        ({"linear": True, "pre_norm": False}, H100, "float32 in one layer and bf16 in others"),
    ],
)  # fmt: skip
def test_which_networks_have_none(
    changes: dict[str, Any], shared: int | None, reason: str | None
) -> None:
    found = block.refusal(replace(COMPILED["mnist"], **changes), shared)
    assert (reason in found) if found and reason else (found is reason)


def test_what_cannot_be_is_refused() -> None:
    wide = replace(MIXED, d_model=264, n_heads=2, n_layers=1)
    with pytest.raises(BackendError, match="no layer of this network is a block here: its rows"):
        TritonDecoder(network_of(wide), 1, blocks=True)


def test_its_bytes_are_its_own() -> None:
    """As a server's mark and its replicas tell."""
    network = network_of(MIXED)
    plain, blocks = (TritonDecoder(network, 1, blocks=blocks).variant for blocks in (False, True))
    assert blocks == plain + " blocks"


class TestDevice:
    """Needs a CUDA device: bf16, also of networks as wide as those that are shipped."""

    pytestmark = gpu

    @pytest.mark.parametrize("config", [*GRID.values(), *ODD.values()], ids=[*GRID, *ODD])
    def test_bf16_is_near_float64(self, config: ModelConfig) -> None:
        if reason := block.refusal(sizes_of(config, "bf16"), H100):
            pytest.skip(reason)
        check(config, "bf16", blocks=True)

    @pytest.mark.parametrize("short_conv", ["none", "2x3"])
    @pytest.mark.parametrize("name", PRESETS)
    def test_a_preset_draws_one_image_s_bytes_alone_and_among_others(
        self, name: str, short_conv: Literal["none", "2x3"]
    ) -> None:
        config = replace(PRESETS[name], height=3, n_layers=3, short_conv=short_conv)
        network, inputs = network_of(config), some(config, 70)
        many = TritonDecoder(network, 70, blocks=True)
        draw(many, inputs, 2)
        alone = TritonDecoder(network, 1, blocks=True, graphs=False, overlap=False)
        for row in (0, 63, 64, 69):
            draw(alone, inputs.rows([row]))
            assert np.array_equal(alone.canvas[0], many.canvas[row])
            assert np.array_equal(alone.bits[0], many.bits[row])

    @pytest.mark.parametrize("short_conv", ["none", "2x3"])
    @pytest.mark.parametrize("name", PRESETS)
    def test_a_preset_loses_no_more_than_by_the_other_kernels(
        self, name: str, short_conv: Literal["none", "2x3"]
    ) -> None:
        """In the bits of images that are given; random networks as wide as these lose many."""
        config = replace(PRESETS[name], height=3, n_layers=3, short_conv=short_conv)
        network, inputs = network_of(config), some(config, 4)
        inputs.known[:] = True
        _, expected, _ = exact(config, inputs.canvas, inputs)
        lost = []
        for blocks in (False, True):
            decoder = TritonDecoder(network, 4, blocks=blocks)
            draw(decoder, inputs)
            lost.append((torch.from_numpy(decoder.bits) - expected).square().mean().sqrt().item())
        assert 0 < lost[1] < 1.5 * lost[0]
