"""A layer as two kernels, the state and all else: the definition again, where it can be had."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from scanline.kernels.cuda import block
from scanline.kernels.cuda import decode as triton_decode
from scanline.kernels.cuda.sizes import COMPILED, Sizes, allocate, allocate_weights
from scanline.model.config import ModelConfig
from scanline.model.decoders.contract import BackendError
from scanline.model.decoders.packing import sizes_of
from scanline.model.decoders.triton import TritonDecoder
from tests.conftest import tiny_config
from tests.decoders.fixtures import network_of
from tests.triton.fixtures import CUDA, GRID, ODD, check, gpu

MIXED = tiny_config(
    height=2, width=2, n_layers=2, channels=3, head="logistic_mixture", encoding="linear",
    short_conv="2x3",
)  # fmt: skip


@pytest.mark.parametrize("config", [*GRID.values(), *ODD.values()], ids=[*GRID, *ODD])
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


def test_which_networks_have_none() -> None:
    wide = replace(COMPILED["mnist"], d_model=512)
    assert not block.fits(wide, device=True)
    exact = replace(COMPILED["mnist"], dtype=torch.float32)
    assert block.fits(exact, device=False)
    assert not block.fits(exact, device=True)
    post = replace(COMPILED["cifar10"], pre_norm=False)  # its stream would wait for a norm
    assert not block.fits(post, device=True)


def test_what_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(s: Sizes, device: bool) -> bool:
        return False

    monkeypatch.setattr(block, "fits", none)
    with pytest.raises(BackendError, match="at most 256 features here, not of float32 and"):
        TritonDecoder(network_of(MIXED), 1, precision="float32", blocks=True)


class TestDevice:
    """Needs a CUDA device: bf16, and the bytes of many."""

    pytestmark = gpu

    @pytest.mark.parametrize("config", [*GRID.values(), *ODD.values()], ids=[*GRID, *ODD])
    def test_bf16_is_near_float64(self, config: ModelConfig) -> None:
        assert CUDA
        if not block.fits(sizes_of(config, "bf16"), device=True):
            pytest.skip("no layer of it is a block")
        check(config, "bf16", blocks=True)
