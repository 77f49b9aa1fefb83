"""Invalid input and settings of the native decoder."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch

from scanline.kernels.native import abi
from scanline.kernels.native import build as native_build
from scanline.kernels.native import cpu as native_cpu
from scanline.model.config import ModelConfig
from scanline.model.decoders import memory as decoder_memory
from scanline.model.decoders.base import BackendError
from scanline.model.decoders.factory import create_decoder
from scanline.model.decoders.native import NativeDecoder
from tests.conftest import tiny_config
from tests.kernels.native.fixtures import TINY, every_kind
from tests.model.decoders.fixtures import blank, network_for


def test_too_many_slots_raise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """States are touched only when images arrive, so the process would be killed later."""
    each = NativeDecoder(TINY, 1).memory
    monkeypatch.setattr(
        decoder_memory, "free_memory", lambda: int(5.5 * each / decoder_memory.SHARE)
    )
    five = NativeDecoder(TINY, 5)
    assert five.memory == 5 * each >= five._native.states.nbytes
    for backend in ("native", "auto"):
        with pytest.raises(decoder_memory.InsufficientMemoryError, match=r"6 slots .* at most 5$"):
            create_decoder(TINY, 6, backend)


@pytest.mark.parametrize("length", [-1, tiny_config().pixels + 1])
def test_invalid_lengths_raise(length: int) -> None:
    decoder = NativeDecoder(TINY, 2)
    slots, lengths = np.array([0, 1], np.int32), np.array([3, length], np.int32)
    with pytest.raises(ValueError, match="lengths must be from 0"):
        decoder._native.begin(slots, lengths)
    assert decoder.positions.tolist() == [0, 0]


def test_overflowing_image_leaves_no_trace(isa: str) -> None:
    """An infinite label embedding spoils its image, but not the next one in the slot."""
    config = tiny_config(classes=("cat", "dog"))
    network, inputs = network_for(config), blank(config, 2)
    assert network.label_embedding is not None
    with torch.no_grad():
        network.label_embedding.weight[0] = torch.inf
    inputs.label[:] = [0, 1]
    clean = NativeDecoder(network, 1, 1, isa=isa)
    clean.begin([0], inputs.select([1]))
    clean.step([0], config.pixels)
    decoder = NativeDecoder(network, 1, 1, isa=isa)
    for row in (0, 1):
        decoder.begin([0], inputs.select([row]))
        decoder.step([0], config.pixels)
        assert np.isfinite(decoder.bits).all() == (row == 1)
    assert decoder.canvas.tobytes() == clean.canvas.tobytes()
    assert decoder.bits.tobytes() == clean.bits.tobytes()


@every_kind
def test_extreme_temperatures_and_weights_stay_in_bounds(config: ModelConfig, isa: str) -> None:
    """No temperature or weight, finite or not, causes an access outside the arrays."""
    extremes = [0.0, 1e-45, 1e-38, 1e-9, 1e9, 3e38, np.inf, np.nan]
    count = len(extremes)
    for scale in (1.0, 1e4, 1e30):
        network = network_for(config)
        with torch.no_grad():
            for parameter in network.head.parameters():
                parameter.mul_(scale)
        decoder = NativeDecoder(network, count, 2, isa=isa)
        decoder.begin(list(range(count)), blank(config, count))
        decoder.inputs.temperature[:] = (
            extremes  # set directly, because `load` rejects most of them
        )
        decoder.step(np.arange(count, dtype=np.int32), config.pixels)
        assert (decoder.positions == config.pixels).all()


def test_invalid_settings_raise() -> None:
    with pytest.raises(ValueError, match="threads must be at least 1, not 0"):
        NativeDecoder(TINY, 1, 0)
    with pytest.raises(ValueError, match="team must be at least 1, not 0"):
        NativeDecoder(TINY, 1, 1, team=0)
    with pytest.raises(ValueError, match=r"isa must be one of amx, avx512bf16, .*, not 'mmx'"):
        NativeDecoder(TINY, 1, isa="mmx")


def test_unknown_struct_fields_raise() -> None:
    """ctypes alone would silently ignore an option or input that C does not know."""
    with pytest.raises(ValueError, match=r"Config in abi\.h has no banana: .* support or refuse"):
        abi.Config(height=3, banana=1)
    with pytest.raises(ValueError, match=r"Arrays in abi\.h has no top_k"):
        abi.Arrays(top_k=0)
    assert (abi.Config(height=3).height, abi.Config(height=3).width) == (3, 0)


def test_struct_fields_are_read_from_the_header() -> None:
    """Some of them, by their positions: integers follow each other, as do pointers."""
    assert (abi.Config.height.offset, abi.Config.gelu.offset) == (0, 8 * 4)
    assert ctypes.sizeof(abi.Config) == (abi.Config.speculate.offset + 4)
    assert (abi.LayerWeights.conv2_weight.offset, abi.Weights.layers.offset) == (17 * 8, 13 * 8)
    assert (abi.Arrays.canvas.offset, abi.Arrays.bits.offset) == (0, 8)


def test_isa_that_the_cpu_lacks_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    for module in (native_cpu, native_build):
        monkeypatch.setattr(module, "cpu", lambda: ("Old CPU", frozenset({"avx2", "fma"})))
    assert native_cpu.cpu_isas() == ["avx2", "portable"]
    with pytest.raises(BackendError, match=r"Old CPU\) has no avx512; it has avx2, portable"):
        NativeDecoder(TINY, 1, isa="avx512")
