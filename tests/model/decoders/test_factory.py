"""Choice of the backend, and refusal of what it cannot run."""

from __future__ import annotations

import dataclasses
import logging
from typing import NoReturn

import numpy as np
import pytest
import torch

from scanline.kernels.native import abi
from scanline.kernels.native.build import NativeBuildError
from scanline.kernels.native.cpu import ISAS, cpu_isas
from scanline.model.config import ModelConfig
from scanline.model.decoders import factory
from scanline.model.decoders.base import BackendError
from scanline.model.decoders.factory import create_decoder
from scanline.model.decoders.memory import InsufficientMemoryError, InsufficientResourcesError
from scanline.model.decoders.native import NativeDecoder
from scanline.model.decoders.reference import ReferenceDecoder
from tests.model.decoders.fixtures import GREY, RGB, blank, draw, network_for
from tests.model.network.variants import FEW


def test_unknown_backend_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"backend must be .*reference.*, not 'quantum'"):
        create_decoder(network_for(GREY), 1, "quantum")


@pytest.mark.parametrize("name", ["auto", "native", "reference"])
def test_unknown_precision_is_rejected_by_every_backend(name: str) -> None:
    with pytest.raises(ValueError, match=r"precision must be .*, not 'int7'"):
        create_decoder(network_for(GREY), 1, name, precision="int7")


@pytest.mark.parametrize("name", ["auto", "native"])
def test_a_wrong_instruction_set_is_an_error_instead_of_slow_drawing(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for wrong in ("avx512_bf16", next(iter(ISAS.keys() - set(cpu_isas())))):
        monkeypatch.setenv("SCANLINE_ISA", wrong)
        with pytest.raises(ValueError, match=f"SCANLINE_ISA must be .*portable.*, not '{wrong}'"):
            create_decoder(network_for(GREY), 1, name)


def test_zero_slots_are_rejected(backend: str) -> None:
    with pytest.raises(ValueError, match="max_slots must be at least 1, not 0"):
        create_decoder(network_for(GREY), 0, backend)


@pytest.mark.parametrize("config", [GREY, RGB], ids=["grey", "rgb"])
def test_memory_is_the_size_of_the_slots(config: ModelConfig) -> None:
    reference, native = (create_decoder(network_for(config), 3, b) for b in ("reference", "native"))
    assert isinstance(reference, ReferenceDecoder)
    assert isinstance(native, NativeDecoder)
    states = sum(tensor.nbytes for state in reference.states for tensor in state.values())
    for decoder, state in ((reference, states), (native, native.states.nbytes)):
        images = decoder.canvas.nbytes + decoder.inputs.known.nbytes + decoder.bits.nbytes
        assert decoder.memory == state + images


def test_auto_creates_a_working_decoder() -> None:
    network, inputs = network_for(GREY), blank(GREY, 1)
    decoder = create_decoder(network, 1)
    decoder.begin([0], inputs)
    decoder.step([0], GREY.pixels)
    assert decoder.positions.tolist() == [GREY.pixels]
    assert np.array_equal(decoder.canvas, draw(network, decoder.backend, inputs)[0])


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_slots_beyond_memory_are_rejected_before_allocation(backend: str) -> None:
    with pytest.raises(InsufficientMemoryError, match="use at most"):
        create_decoder(network_for(GREY), 10**12, backend)


def test_auto_raises_instead_of_falling_back_without_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise NativeBuildError("100000 threads cannot be had: ask for fewer")

    monkeypatch.setattr(abi, "DecoderHandle", refuse)
    with pytest.raises(InsufficientResourcesError, match="ask for fewer"):
        create_decoder(network_for(GREY), 1, threads=100_000)


def test_auto_logs_that_a_device_ignores_threads(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(factory, "_create_triton", ReferenceDecoder)  # stands in for a device
    assert create_decoder(network_for(GREY), 1, threads=2).backend == "reference"
    assert "ignoring threads=2" in caplog.text
    caplog.clear()
    assert create_decoder(network_for(GREY), 1).backend == "reference"
    assert "threads" not in caplog.text


def test_few_variants_cover_every_start_and_order() -> None:
    assert {c.start for c in FEW.values()} == {"learned", "given"}
    assert {(c.order, c.channels) for c in FEW.values()} >= {
        ("pixel", 1), ("pixel", 3), ("subpixel", 3),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["native", "triton"])
def test_unknown_option_values_are_rejected(
    name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backend names an unknown value of any option; ``auto`` takes the next backend."""
    if name == "triton":
        pytest.importorskip("triton")
        from scanline.model.decoders.triton import OPTIONS
        from scanline.model.decoders.triton import TritonDecoder as Backend
    else:
        from scanline.model.decoders.native import OPTIONS
        from scanline.model.decoders.native import NativeDecoder as Backend  # type: ignore[assignment]
    options = [f.name for f in dataclasses.fields(ModelConfig) if isinstance(f.default, str)]
    assert {"attention", "short_conv", "feature_map", "norm", "start"} <= set(options)
    assert Backend.unsupported(GREY) is None
    for option in options:
        config = dataclasses.replace(GREY)
        object.__setattr__(config, option, "unknown")  # bypasses the config's validation
        supported = ", ".join(OPTIONS.get(option, (getattr(ModelConfig, option),)))
        assert Backend.unsupported(config) == f"{option} 'unknown' (supported: {supported})"
    network = network_for(GREY)
    monkeypatch.setattr(Backend, "unsupported", classmethod(lambda cls, config: "norm 'rms'"))
    with pytest.raises(BackendError, match=rf"{name}.*norm 'rms'|needs an NVIDIA GPU"):
        create_decoder(network, 1, name)
    if name == "native":
        assert create_decoder(network, 1, "auto").backend == "reference"
        assert "norm 'rms'" in caplog.text


def test_new_options_are_unsupported_by_default() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Tomorrow(ModelConfig):
        gate: bool = False

    plain = Tomorrow(**dataclasses.asdict(GREY) | {"classes": GREY.classes})
    assert NativeDecoder.unsupported(plain) is None
    reason = NativeDecoder.unsupported(dataclasses.replace(plain, gate=True))
    assert reason is not None
    assert "gate True" in reason
