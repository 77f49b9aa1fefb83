"""Which devices run the kernels for training."""

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
    """Let there be an NVIDIA device of capability 8.0, Triton and a compiler."""
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(available, "find_spec", lambda name: object())
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.delenv("CC", raising=False)
    available._check_device.cache_clear()
    yield
    available._check_device.cache_clear()


def test_an_nvidia_device_with_triton_and_a_compiler_has_them() -> None:
    assert triton_available(DEVICE)
    assert not triton_available(torch.device("cpu"))


@pytest.mark.parametrize("lacking", ["capability", "nvidia"])
def test_other_devices_have_none(lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if lacking == "capability":
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    else:
        monkeypatch.setattr(torch.version, "hip", "6.0")
    assert not triton_available(DEVICE)


def test_without_triton_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(available, "find_spec", lambda name: None)
    assert not triton_available(DEVICE)


def test_without_a_compiler_there_are_none_and_it_is_said_once(
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
    available._check_device.cache_clear()
    assert triton_available(DEVICE)
