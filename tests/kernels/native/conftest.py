"""Fixtures of the native decoder's tests: ISAs, a build cache and a fake compiler."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scanline.kernels.native import abi as native
from scanline.kernels.native.build import FLAGS, NativeBuildError, find_compiler
from scanline.kernels.native.cpu import ISAS, cpu_isas, machine_isas
from tests.conftest import isa_params, use_fast_build
from tests.kernels.native.fixtures import EMULATED


@pytest.fixture(params=isa_params(machine_isas()))
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return each ISA of this architecture; skip those that the CPU or the compiler lacks."""
    name = str(request.param)
    if name not in cpu_isas():
        pytest.skip(f"this CPU has no {name}")
    use_fast_build(name, monkeypatch)
    try:
        native.load_library(name)
    except NativeBuildError as error:
        if compiler_supports(name):
            raise
        pytest.skip(str(error))
    return name


@pytest.fixture(params=EMULATED)
def emulated(request: pytest.FixtureRequest) -> str:
    """Return each ISA to emulate; skip those that the CPU has itself or cannot run the rest of."""
    name = str(request.param)
    if name in cpu_isas():
        pytest.skip(f"this CPU has {name} itself")
    if (base := EMULATED[name]) not in cpu_isas():
        pytest.skip(f"this CPU has no {base}")
    return name


@pytest.fixture(scope="session")
def emulation_folder(shared_folder: Path) -> Path:
    """Return a folder for builds of emulated ISAs that all tests share."""
    return shared_folder / "emulated"


def compiler_supports(isa: str) -> bool:
    """Return True if there is a compiler that can build an empty file for an ISA."""
    try:
        compiler = find_compiler()
    except NativeBuildError:
        return False
    command = [*compiler, *FLAGS, *ISAS[isa].flags, "-fsyntax-only", "-x", "c++", "/dev/null"]
    return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache folder for builds."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("SCANLINE_CACHE", str(folder))
    monkeypatch.setenv("SCANLINE_CXXFLAGS", "-O0")  # for faster builds
    return folder


@pytest.fixture(scope="module")
def built() -> Path:
    """Return the path of the shared portable build."""
    with pytest.MonkeyPatch.context() as sooner:
        use_fast_build("portable", sooner)
        name: str = native.load_library("portable")._name
    return Path(name)


@pytest.fixture
def compiler(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set CXX to a fake compiler that outputs the portable build and logs its arguments."""
    path = tmp_path / "fake-c++"
    path.write_text(
        f"""#!/bin/sh
case "$*" in *--version) exec echo fake;; esac
echo "$@" >>'{path}.log'
while [ "$1" != -o ]; do shift; done
exec cp '{built}' "$2"
"""
    )
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))
    return path
