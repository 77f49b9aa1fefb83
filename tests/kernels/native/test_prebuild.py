"""Builds in advance: which compiler makes them, and when they are loaded."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import NoReturn

import pytest

from scanline.kernels.native import abi as native
from scanline.kernels.native import build as native_build
from scanline.kernels.native import cpu as native_cpu
from scanline.kernels.native.build import DECODER, NativeBuildError
from scanline.kernels.native.cpu import ISAS
from scanline.kernels.native.prebuild import prebuild
from scanline.model.decoders.factory import create_decoder
from tests.kernels.native.fixtures import TINY, compilations

MACHINE = platform.machine()


@pytest.fixture
def prebuilt(cache: Path, compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Build the portable ISA in advance, and remove all compilers."""
    answer = f'case "$*" in *-dumpmachine*) exec echo {MACHINE}-linux-gnu;; esac\nwhile'
    compiler.write_text(compiler.read_text().replace("while", answer))
    folder = tmp_path / "prebuilt"
    monkeypatch.setattr(native_build, "PREBUILT", folder)
    monkeypatch.setattr(native_cpu, "ISAS", {"portable": ISAS["portable"]})
    built = prebuild(MACHINE, folder)
    assert {path.name.split("-")[0] for path in built} == {"decoder", "training"}
    assert {*folder.iterdir()} == {*built}
    Path(f"{compiler}.log").write_text("")
    monkeypatch.delenv("CXX")

    def no_compiler() -> NoReturn:
        raise NativeBuildError("there is no C++ compiler")

    monkeypatch.setattr(native_build, "find_compiler", no_compiler)
    return folder


def test_they_need_no_compiler_and_no_cache(prebuilt: Path, cache: Path) -> None:
    decoder = create_decoder(TINY, 1)
    assert decoder.backend == "native"
    assert Path(native.load_library()._name).parent == prebuilt
    assert not cache.exists()


def test_they_are_preferred_to_a_compiler_unless_it_is_named(
    prebuilt: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_build, "find_compiler", lambda: [str(compiler)])
    native.load_library()
    assert compilations(compiler) == 0
    monkeypatch.setenv("CXX", str(compiler))
    native.load_library()
    assert compilations(compiler) == 1


def test_a_build_of_other_sources_or_flags_is_not_loaded(
    prebuilt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as changed:
        changed.setenv("SCANLINE_CXXFLAGS", "-O1")
        with pytest.raises(NativeBuildError, match="there is no C"):
            native.load_library()
    native.load_library()
    sources = tmp_path / "sources"
    sources.mkdir()
    for path in (DECODER, *DECODER.parent.glob("*.h")):
        (sources / path.name).write_bytes(path.read_bytes())
    native_build.load_build(source=sources / DECODER.name)  # a copy is the same source
    with (sources / "abi.h").open("a") as header:
        header.write("\n")
    with pytest.raises(NativeBuildError, match="there is no C"):
        native_build.load_build(source=sources / DECODER.name)


def test_a_damaged_build_is_replaced_by_a_compiled_one(
    prebuilt: Path,
    compiler: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    copy = prebuilt.with_name("copy")  # the file itself is mapped
    copy.mkdir()
    for path in prebuilt.iterdir():
        (copy / path.name).write_bytes(b"half a build")
    monkeypatch.setattr(native_build, "PREBUILT", copy)
    monkeypatch.setattr(native_build, "find_compiler", lambda: [str(compiler)])
    native.load_library()
    assert compilations(compiler) == 1
    assert f"{copy}/decoder-portable-" in caplog.text
    assert "cannot be loaded" in caplog.text


def test_another_architecture_needs_its_compiler(
    cache: Path, compiler: Path, tmp_path: Path
) -> None:
    script = compiler.read_text()
    for target in ("aarch64-linux-gnu", "x86_64-apple-darwin"):
        answer = f'case "$*" in *-dumpmachine*) exec echo {target};; esac\nwhile'
        compiler.write_text(script.replace("while", answer))
        with pytest.raises(NativeBuildError, match=rf"compiles for {target}: set CXX to a compil"):
            prebuild("x86_64", tmp_path / "prebuilt")
    compiler.write_text(script.replace("while", answer.replace(target, "aarch64-linux-gnu")))
    built = prebuild("aarch64", tmp_path / "prebuilt")
    isas = {path.name.split("-")[1] for path in built}
    assert isas == {"neonbf16", "neondot", "portable"}
