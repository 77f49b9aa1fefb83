"""Tests of the Triton decoder's errors: invalid arguments, missing hardware and software."""

from __future__ import annotations

import ctypes
import importlib.util
import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton

from scanline.kernels.cuda.dependent_launch import supports_dependent_launch
from scanline.kernels.cuda.launch import StepRunner
from scanline.model.decoders import device
from scanline.model.decoders.base import BackendError
from scanline.model.decoders.factory import create_decoder
from scanline.model.decoders.memory import InsufficientMemoryError, InsufficientResourcesError
from scanline.model.decoders.triton import TritonDecoder
from scanline.model.network import LinearTransformer
from tests.model.decoders.fixtures import network_for
from tests.triton.fixtures import SMALL

# Replacement of ``torch`` in the factory that reports a CUDA device.
WITH_CUDA = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: True))


def test_invalid_arguments_raise() -> None:
    network = network_for(SMALL)
    decoder = TritonDecoder(network, 3)
    for slots in ([0, 1, 0], [3], [-2]):
        with pytest.raises(ValueError, match="slots must be -1 or different"):
            decoder.step(slots, 1)
    assert decoder.positions.tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="precision must be bf16 or float32, not 'int8'"):
        TritonDecoder(network, 1, precision="int8")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_slots must be at least 1, not 0"):
        TritonDecoder(network, 0)


def test_threads_option_raises() -> None:
    with pytest.raises(ValueError, match="leave threads out"):
        create_decoder(network_for(SMALL), 1, "triton", threads=2)


def test_dependent_launch_needs_device_and_driver_support(monkeypatch: pytest.MonkeyPatch) -> None:
    class Driver:
        found, version = 0, 12_030

        def cuDriverGetVersion(self, version: Any) -> int:  # noqa: N802
            version._obj.value = self.version
            return self.found

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver())
    assert supports_dependent_launch((9, 0))
    assert supports_dependent_launch((12, 0))
    assert not supports_dependent_launch((8, 9))
    monkeypatch.setattr(Driver, "version", 12_020)
    assert not supports_dependent_launch((9, 0))
    monkeypatch.setattr(Driver, "version", 13_000)
    monkeypatch.setattr(Driver, "found", 3)  # not initialised
    assert not supports_dependent_launch((9, 0))
    monkeypatch.setattr(ctypes, "CDLL", no_library)
    assert not supports_dependent_launch((9, 0))
    monkeypatch.setattr(device, "supports_dependent_launch", lambda capability: False)
    with pytest.raises(BackendError, match=r"overlap=True needs compute capability 9\.0"):
        TritonDecoder(network_for(SMALL), 1, overlap=True)


def no_library(name: str) -> None:
    raise OSError(name)


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    network = LinearTransformer(SMALL)
    with pytest.raises(BackendError, match="needs an NVIDIA GPU and a CUDA build of PyTorch"):
        create_decoder(network, 1, "triton")
    assert create_decoder(network, 1).backend != "triton"
    assert "GPU" not in caplog.text  # no warning if no GPU was requested


def test_without_triton(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The triton backend raises; the auto backend logs the reason and uses the CPU."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    network = LinearTransformer(SMALL)
    with pytest.raises(BackendError, match=r"pip install 'scanline-rnn\[gpu\]'"):
        create_decoder(network, 1, "triton")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert create_decoder(network, 1).backend != "triton"
    assert "decoding on the CPU: the triton backend needs Triton" in caplog.text


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(StepRunner, "compile", fail)
    with pytest.raises(BackendError, match=r"\(Failed to find C compiler\); .* install gcc"):
        create_decoder(network_for(SMALL), 1, "triton")


def test_unsupported_model_is_refused_before_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another backend can draw it, so that ``auto`` must not ask for fewer slots."""
    monkeypatch.setattr(device.Device, "free", 2**20)
    with pytest.raises(BackendError, match="cannot run this model: attention 'softmax'") as refused:
        create_decoder(network_for(replace(SMALL, attention="softmax")), 10_000, "triton")
    assert not isinstance(refused.value, InsufficientResourcesError)


def test_memory_is_that_of_the_images_on_the_host() -> None:
    decoder = create_decoder(network_for(SMALL), 3, "triton")
    images = decoder.canvas.nbytes + decoder.inputs.known.nbytes + decoder.bits.nbytes
    assert decoder.memory == images


def test_too_many_slots_do_not_fall_back_to_the_cpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    network = network_for(SMALL)
    monkeypatch.setattr("scanline.model.decoders.factory.torch", WITH_CUDA)
    with monkeypatch.context() as patch:
        patch.setattr(device.Device, "free", 2**20)
        for backend in ("auto", "triton"):
            with pytest.raises(
                InsufficientMemoryError, match=r"10,000 slots .* do not fit into the free memory"
            ):
                create_decoder(network, 10_000, backend)

    def raise_out_of_memory(*arguments: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("scanline.model.decoders.triton.allocate_buffers", raise_out_of_memory)
    monkeypatch.setattr(TritonDecoder, "_check_memory", lambda *_: None)
    with pytest.raises(
        InsufficientResourcesError, match=r"not enough GPU memory: CUDA out of memory"
    ):
        create_decoder(network, 3)
    assert "on the CPU" not in caplog.text


def test_failing_gpu_falls_back_to_the_cpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: object) -> None:
        raise torch.AcceleratorError("CUDA error: all CUDA-capable devices are busy")

    monkeypatch.setattr(device.Device, "__init__", fail)
    monkeypatch.setattr("scanline.model.decoders.factory.torch", WITH_CUDA)
    with pytest.raises(BackendError, match="the GPU failed: CUDA error: all"):
        create_decoder(network_for(SMALL), 1, "triton")
    assert create_decoder(network_for(SMALL), 1).backend != "triton"
    assert "decoding on the CPU: the GPU failed" in caplog.text


def test_other_errors_are_not_reported_as_missing_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("The size of tensor a (3) must match")

    monkeypatch.setattr("scanline.model.decoders.triton.load_weights", fail)
    with pytest.raises(RuntimeError, match=r"^The size of tensor"):
        create_decoder(network_for(SMALL), 1, "triton")


def test_create_by_name(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    decoder = create_decoder(network_for(SMALL), 2, "triton")
    assert isinstance(decoder, TritonDecoder)
    assert decoder.backend == "triton"
    assert "2 slots of 0.0" in caplog.text
    assert f"decoding with {decoder.variant} on " in caplog.text
