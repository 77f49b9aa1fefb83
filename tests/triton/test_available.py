"""Tests of ``triton_available``."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator

import pytest
import torch

from scanline.kernels.cuda import available
from scanline.kernels.cuda.available import triton_available

DEVICE = torch.device("cuda", 7)


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Simulate an NVIDIA GPU of capability 8.0, Triton and a compiler."""
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(available, "find_spec", lambda name: object())
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.delenv("CC", raising=False)
    triton_available.cache_clear()
    yield
    triton_available.cache_clear()


def test_available_with_gpu_triton_and_compiler() -> None:
    assert triton_available(DEVICE)
    assert not triton_available(torch.device("cpu"))


@pytest.mark.parametrize("missing", ["capability", "nvidia"])
def test_unavailable_on_other_devices(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if missing == "capability":
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    else:
        monkeypatch.setattr(torch.version, "hip", "6.0")
    assert not triton_available(DEVICE)


def test_unavailable_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(available, "find_spec", lambda name: None)
    assert not triton_available(DEVICE)


def test_missing_compiler_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with caplog.at_level(logging.WARNING, "scanline.kernels"):
        assert not triton_available(DEVICE)
        assert not triton_available(DEVICE)
    assert [record.message for record in caplog.records] == [
        "Triton needs a C compiler (`apt-get install gcc python3-dev`): training and evaluation "
        "run without its kernels, which is slower"
    ]
    monkeypatch.setenv("CC", "clang-17")
    triton_available.cache_clear()
    assert triton_available(DEVICE)
