"""The ISAs, a cache and a compiler, for tests of the native decoder."""

from __future__ import annotations

from pathlib import Path

import pytest

from scanline.kernels.native import abi as native
from scanline.kernels.native.build import NativeBuildError
from scanline.kernels.native.cpu import machine_isas
from tests.conftest import build_sooner, some_of


@pytest.fixture(params=some_of(machine_isas()))
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Give each of the machine's ISAs; skips, visibly, those that this CPU or compiler lacks."""
    name = str(request.param)
    build_sooner(name, monkeypatch)
    try:
        native.load_library(name)
    except NativeBuildError as error:
        pytest.skip(str(error))
    return name


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
