"""The ISAs, a cache and a compiler, for tests of the native decoder."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scanline.kernels.native import abi as native
from scanline.kernels.native.build import FLAGS, NativeBuildError, find_compiler
from scanline.kernels.native.cpu import ISAS, cpu_isas, machine_isas
from tests.conftest import build_sooner, some_of


@pytest.fixture(params=some_of(machine_isas()))
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Give each of the machine's ISAs; skips, visibly, those that this CPU or compiler lacks."""
    name = str(request.param)
    if name not in cpu_isas():
        pytest.skip(f"this CPU has no {name}")
    build_sooner(name, monkeypatch)
    try:
        native.load_library(name)
    except NativeBuildError as error:
        if compiler_knows(name):
            raise
        pytest.skip(str(error))
    return name


def compiler_knows(isa: str) -> bool:
    """Whether there is a compiler that can build a file of nothing for an ISA."""
    try:
        compiler = find_compiler()
    except NativeBuildError:
        return False
    command = [*compiler, *FLAGS, *ISAS[isa].flags, "-fsyntax-only", "-x", "c++", "/dev/null"]
    return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give an empty cache folder to build into."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("SCANLINE_CACHE", str(folder))
    monkeypatch.setenv("SCANLINE_CXXFLAGS", "-O0")  # builds faster
    return folder


@pytest.fixture(scope="module")
def built() -> Path:
    """Give the portable build that every other test of it uses."""
    with pytest.MonkeyPatch.context() as sooner:
        build_sooner("portable", sooner)
        name: str = native.load_library("portable")._name
    return Path(name)


@pytest.fixture
def compiler(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Name a compiler whose every output is that build: for tests of what becomes of outputs."""
    path = tmp_path / "ready-c++"
    path.write_text(
        f"""#!/bin/sh
case "$*" in *--version) exec echo ready;; esac
echo "$@" >>'{path}.log'
while [ "$1" != -o ]; do shift; done
exec cp '{built}' "$2"
"""
    )
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))
    return path
