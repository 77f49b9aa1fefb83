"""The cache of builds: reuse, damaged files, and folders that cannot be used."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scanline.kernels.cache import CacheFolderError
from scanline.kernels.native import abi as native
from scanline.kernels.native import build as native_build
from scanline.kernels.native.build import DECODER, TRAINING, find_compiler, included_files
from scanline.model.decoders.native import NativeDecoder
from tests.conftest import ROOT
from tests.kernels.native.fixtures import TINY, compilations


def test_builds_are_cached(cache: Path, compiler: Path) -> None:
    for _ in range(2):
        native.load_library("portable")
    (built,) = cache.iterdir()
    assert built.name.startswith("decoder-portable-")
    assert compilations(compiler) == 1


def test_compiler_arguments_are_part_of_the_key(
    cache: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for builds, arguments in enumerate(["", " -O0 -DX", " -O0 -DY", " -O0 '-DX -DY'"], 1):
        monkeypatch.setenv("CXX", f"{compiler}{arguments}")
        for _ in range(2):
            native.load_library("portable")
            assert compilations(compiler) == len(list(cache.iterdir())) == builds


def test_concurrent_builds_of_two_processes(cache: Path, compiler: Path) -> None:
    # Neither build ends before the other has started.
    log = f"{compiler}.log"
    script = compiler.read_text()
    wait = f"until [ $(wc -l <'{log}') = 2 ]; do sleep 0.01; done\n"
    compiler.write_text(script.replace("exec cp", f"{wait}exec cp"))
    program = (
        "from scanline.kernels.native import abi; "
        "print(abi.load_library('portable').scanline_isa())"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    for process in both:
        assert process.communicate(timeout=120)[0].strip() == b"b'portable'"
        assert process.returncode == 0
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("source", [DECODER, TRAINING], ids=lambda source: source.stem)
def test_included_files_are_those_of_the_compiler(source: Path) -> None:
    """The compiler leaves out headers for other CPUs."""
    listed = native_build.run_compiler([*find_compiler(), "-std=c++20", "-MM", str(source)])
    _, *paths = listed.replace("\\\n", " ").split()
    found = included_files(source)
    assert {Path(path).resolve() for path in paths} <= {*found}
    assert found[0] == source.resolve()
    assert (DECODER.with_name("decoder.h").resolve() in found) == (source == DECODER)


@pytest.mark.parametrize("source", [DECODER, TRAINING], ids=lambda source: source.stem)
def test_included_files_in_a_locale_without_utf_8(source: Path) -> None:
    """Such as zh_CN.GBK, in which the comments cannot be decoded."""
    program = (
        "from scanline.kernels.native import build; "
        f"build.included_files(build.{source.stem.upper()})"
    )
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=os.environ | locale, check=True)


def test_damaged_build_is_rebuilt(
    cache: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    native.load_library("portable")
    (kept,) = cache.iterdir()
    other = cache.with_name("other")
    other.mkdir()
    damaged = other / kept.name
    damaged.write_bytes(b"half a build")
    monkeypatch.setenv("SCANLINE_CACHE", str(other))
    native.load_library("portable")
    assert "because it cannot be loaded" in caplog.text
    assert damaged.stat().st_size > 10_000
    assert compilations(compiler) == 2


def test_unwritable_cache(cache: Path, compiler: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file in place of the folder simulates a read-only one, because root may write anywhere."""
    cache.write_text("no folder")
    for _ in range(2):  # the second model reuses the first one's build
        decoder = NativeDecoder(TINY, 1, isa="portable")
        decoder.step([0], 1)
    assert caplog.text.count("set SCANLINE_CACHE to a writable folder") == 1
    assert compilations(compiler) == 1


@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EDQUOT], ids=errno.errorcode.get)
def test_full_disk(
    reason: int, cache: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """The build uses a temporary folder. No other ISA or compiler is tried."""
    output = f"as: can't write 40 bytes to section .text of x.o: {os.strerror(reason)}"
    full = f'case "$*" in *\'{cache}\'*) echo "{output}" >&2; exit 1;; esac\n'
    compiler.write_text(compiler.read_text().replace("while", f"{full}while"))
    native.load_library()
    assert compilations(compiler) == 2
    assert f"cannot cache builds in {cache} (the disk is full ({output})" in caplog.text
    monkeypatch.setenv("SCANLINE_CACHE", str(cache / "here"))
    compiler.write_text(compiler.read_text().replace(f"*'{cache}'*", "*"))
    with pytest.raises(native_build.InterruptedBuildError, match="the disk is full"):
        native.load_library()
    assert compilations(compiler) == 4


def test_noexec_folders(
    cache: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Docker mounts ``/tmp`` so. Nothing is compiled there for any ISA."""
    real, noexec_folders = os.statvfs, [str(cache)]

    def statvfs(path: Path) -> Any:
        result = real(path)
        flag = os.ST_NOEXEC if str(path).startswith(tuple(noexec_folders)) else 0
        return SimpleNamespace(f_flag=result.f_flag & ~os.ST_NOEXEC | flag)

    monkeypatch.setattr(os, "statvfs", statvfs)
    native.load_library()
    assert f"cannot cache builds in {cache} (it is mounted noexec" in caplog.text
    assert compilations(compiler) == 1
    # A build that is not to be loaded may be for another machine.
    command, path = native_build.find_compiler(), cache / "decoder.so"
    native_build.compile_library(command, "portable", native_build.DECODER, path, to_load=False)
    assert path.is_file()
    assert compilations(compiler) == 2
    noexec_folders.append(tempfile.gettempdir())
    monkeypatch.setattr(native_build, "_private", {})
    with pytest.raises(
        native_build.BuildFolderError, match=r"noexec.* set SCANLINE_CACHE to a wri"
    ):
        native.load_library("portable")
    with pytest.raises(native_build.BuildFolderError):
        native.load_library()
    assert compilations(compiler) == 2


def test_no_usable_folder(cache: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write_text("no folder")

    def nowhere() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    with pytest.raises(
        native_build.BuildFolderError, match=r"No usable temporary .* set SCANLINE_C"
    ):
        native.load_library()
    assert not Path(f"{compiler}.log").exists()  # the compiler has not run


def test_cache_without_permission(
    cache: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another user's home, for example. Simulated, because root may access everything."""
    real = os.stat

    def stat(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if str(path).startswith(str(cache)):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *arguments, **options)

    make = Path.mkdir

    def mkdir(path: Path, *arguments: Any, **options: Any) -> None:
        if path.is_relative_to(cache):
            raise PermissionError(13, "Permission denied", str(path))
        make(path, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", stat)
        patched.setattr(Path, "mkdir", mkdir)
        native.load_library("portable")
    assert "set SCANLINE_CACHE to a writable folder" in caplog.text
    assert compilations(compiler) == 1


def test_relative_cache_folder(
    compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCANLINE_CACHE", ".")
    for _ in range(2):
        native.load_library("portable")
    assert compilations(compiler) == 1


def test_no_folder_for_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_folder() -> Path:
        raise CacheFolderError("set SCANLINE_CACHE to a writable folder")

    monkeypatch.setattr(native_build, "cache_folder", no_folder)
    with pytest.raises(native_build.NativeBuildError, match="set SCANLINE_CACHE"):
        native.load_library("portable")


def test_temporary_files_deleted_meanwhile(
    cache: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = Path.glob

    def glob(folder: Path, pattern: str) -> list[Path]:
        deleted = [folder / ".decoder-portable-gone"] if pattern.startswith(".") else []
        return [*deleted, *real(folder, pattern)]

    monkeypatch.setattr(Path, "glob", glob)
    native.load_library("portable")
    assert caplog.text == ""
    assert len(list(cache.iterdir())) == compilations(compiler) == 1
