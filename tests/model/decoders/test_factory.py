"""Choosing a backend."""

from __future__ import annotations

import dataclasses
import logging
from typing import NoReturn

import numpy as np
import pytest
import torch

from scanline.kernels.native import abi
from scanline.kernels.native.build import NativeBuildError
from scanline.model.config import ModelConfig
from scanline.model.decoders import factory
from scanline.model.decoders.base import BackendError
from scanline.model.decoders.factory import create_decoder
from scanline.model.decoders.memory import InsufficientMemoryError, InsufficientResourcesError
from scanline.model.decoders.native import NativeDecoder
from scanline.model.decoders.reference import ReferenceDecoder
from tests.model.decoders.fixtures import GREY, RGB, blank, draw, network_for
from tests.model.network.variants import FEW


def test_unknown_backends_are_refused() -> None:
    with pytest.raises(ValueError, match=r"backend must be .*reference.*, not 'quantum'"):
        create_decoder(network_for(GREY), 1, "quantum")


def test_no_slots_are_refused(backend: str) -> None:
    with pytest.raises(ValueError, match="max_slots must be at least 1, not 0"):
        create_decoder(network_for(GREY), 0, backend)


@pytest.mark.parametrize("config", [GREY, RGB], ids=["grey", "rgb"])
def test_a_decoder_says_how_much_memory_its_slots_come_to_take(config: ModelConfig) -> None:
    reference, native = (create_decoder(network_for(config), 3, b) for b in ("reference", "native"))
    assert isinstance(reference, ReferenceDecoder)
    assert isinstance(native, NativeDecoder)
    states = sum(tensor.nbytes for state in reference.states for tensor in state.values())
    for decoder, state in ((reference, states), (native, native.states.nbytes)):
        images = decoder.canvas.nbytes + decoder.inputs.known.nbytes + decoder.bits.nbytes
        assert decoder.memory == state + images


def test_auto_opens_something_that_draws() -> None:
    network, inputs = network_for(GREY), blank(GREY, 1)
    decoder = create_decoder(network, 1)
    decoder.begin([0], inputs)
    decoder.step([0], GREY.pixels)
    assert decoder.positions.tolist() == [GREY.pixels]
    assert np.array_equal(decoder.canvas, draw(network, decoder.backend, inputs)[0])


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_slots_that_do_not_fit_are_refused_before_their_arrays_are_made(backend: str) -> None:
    with pytest.raises(InsufficientMemoryError, match="use at most"):
        create_decoder(network_for(GREY), 10**12, backend)


def test_auto_does_not_draw_slowly_where_threads_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise NativeBuildError("100000 threads cannot be had: ask for fewer")

    monkeypatch.setattr(abi, "NativeNetwork", refuse)
    with pytest.raises(InsufficientResourcesError, match="ask for fewer"):
        create_decoder(network_for(GREY), 1, threads=100_000)


def test_auto_says_that_a_device_needs_no_threads(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(factory, "_create_triton", ReferenceDecoder)  # it stands for one
    assert create_decoder(network_for(GREY), 1, threads=2).backend == "reference"
    assert "ignoring threads=2" in caplog.text
    caplog.clear()
    assert create_decoder(network_for(GREY), 1).backend == "reference"
    assert "threads" not in caplog.text


def test_the_few_variants_have_every_start_and_order() -> None:
    assert {c.start for c in FEW.values()} == {"learned", "given"}
    assert {(c.order, c.channels) for c in FEW.values()} >= {
        ("pixel", 1), ("pixel", 3), ("subpixel", 3),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["native", "triton"])
def test_options_that_a_backend_has_not_heard_of_are_refused(
    name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every option of a config, set to a value of tomorrow, is named; ``auto`` takes the next."""
    if name == "triton":
        pytest.importorskip("triton")
        from scanline.model.decoders.triton import TritonDecoder as Backend
    else:
        from scanline.model.decoders.native import NativeDecoder as Backend  # type: ignore[assignment]
    options = [f.name for f in dataclasses.fields(ModelConfig) if isinstance(f.default, str)]
    assert {"attention", "short_conv", "feature_map", "norm", "start"} <= set(options)
    assert Backend.unsupported(GREY) is None
    for option in options:
        config = dataclasses.replace(GREY)
        object.__setattr__(config, option, "of tomorrow")  # past the config's own check
        reason = Backend.unsupported(config)
        assert reason is not None
        assert option in reason
    network = network_for(GREY)
    monkeypatch.setattr(Backend, "unsupported", classmethod(lambda cls, config: "norm 'rms'"))
    with pytest.raises(BackendError, match=rf"{name}.*norm 'rms'|needs an NVIDIA GPU"):
        create_decoder(network, 1, name)
    if name == "native":
        assert create_decoder(network, 1, "auto").backend == "reference"
        assert "norm 'rms'" in caplog.text


def test_a_new_option_is_refused_by_a_backend_that_was_never_told_of_it() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Tomorrow(ModelConfig):
        gate: bool = False

    plain = Tomorrow(**dataclasses.asdict(GREY) | {"classes": GREY.classes})
    assert NativeDecoder.unsupported(plain) is None
    reason = NativeDecoder.unsupported(dataclasses.replace(plain, gate=True))
    assert reason is not None
    assert "gate True" in reason
