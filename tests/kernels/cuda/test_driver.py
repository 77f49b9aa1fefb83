"""Tests of the compiler of the fused decode kernel, NVRTC, and of its cache."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from scanline.kernels.cache import CacheFolderError
from scanline.kernels.cuda.fused import driver
from scanline.kernels.cuda.fused.driver import CompileError, compile_cached, compile_source


def test_compile_error_includes_the_log() -> None:
    pytest.importorskip("nvidia")
    with pytest.raises(CompileError, match=r"(?s)wrong\.cu does not compile: .*nonesuch"):
        compile_source("int one() { return nonesuch; }", "wrong.cu", {}, (9, 0))


@pytest.mark.parametrize("function", ["nvrtcGetCUBINSize", "nvrtcGetCUBIN"])
def test_missing_machine_code_is_an_error(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise zeros would be cached."""
    pytest.importorskip("nvidia")
    nvrtc = driver._nvrtc()
    monkeypatch.setattr(driver, "_nvrtc", lambda: nvrtc)
    monkeypatch.setattr(nvrtc, function, lambda *arguments: 7)
    with pytest.raises(CompileError, match=r"no machine code for one\.cu: error 7"):
        compile_source('extern "C" __global__ void one() {}', "one.cu", {}, (9, 0))


def test_compile_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("nvidia")
    source_and_name = 'extern "C" __global__ void one(int* to) { *to = VALUE; }', "one.cu"
    monkeypatch.setenv("SCANLINE_CACHE", str(tmp_path / "new"))
    code = compile_cached(*source_and_name, {"VALUE": 1}, (9, 0))
    (cache_file,) = (tmp_path / "new").iterdir()
    assert code == compile_source(*source_and_name, {"VALUE": 1}, (9, 0))
    assert compile_cached(*source_and_name, {"VALUE": 2}, (9, 0)) != code
    assert compile_cached(*source_and_name, {"VALUE": 1}, (10, 0)) != code
    with monkeypatch.context() as patch:
        patch.setattr(driver, "compile_source", None)
        assert compile_cached(*source_and_name, {"VALUE": 1}, (9, 0)) == code
    for damaged in (b"", cache_file.read_bytes()[:-1]):
        cache_file.write_bytes(damaged)
        assert compile_cached(*source_and_name, {"VALUE": 1}, (9, 0)) == code
        assert cache_file.read_bytes().endswith(code)
    assert not caplog.text
    for cache in (cache_file / "in a file", None):
        caplog.clear()
        with monkeypatch.context() as patch:
            patch.setenv("SCANLINE_CACHE", str(cache or ""))
            if cache is None:
                patch.setattr(driver, "cache_folder", no_folder)
            assert compile_cached(*source_and_name, {"VALUE": 1}, (9, 0)) == code
            assert compile_cached(*source_and_name, {"VALUE": 1}, (9, 0)) == code
        assert caplog.text.count("set SCANLINE_CACHE to a writable folder to compile") == 1


def no_folder() -> Path:
    raise CacheFolderError("there is no home folder and no temporary folder")


def test_missing_nvrtc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "torch" / "__init__.py"))
    monkeypatch.setattr(torch.version, "cuda", "99.0")
    with pytest.raises(CompileError, match=r"libnvrtc\.so\.99 not found: .*pip install"):
        compile_source("", "x.cu", {}, (9, 0))
