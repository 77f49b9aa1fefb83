"""Fixture of the training library's tests: the ISAs of this CPU."""

from __future__ import annotations

import pytest

from scanline.kernels.native import cpu
from scanline.kernels.native.build import NativeBuildError, find_compiler
from scanline.kernels.native.training import library
from tests.conftest import build_sooner, some_of


@pytest.fixture(params=some_of(cpu.cpu_isas()))
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Use a library built for each ISA of this CPU, with one thread."""
    try:
        find_compiler()
    except NativeBuildError as missing:
        pytest.skip(str(missing))
    build_sooner(request.param, monkeypatch)
    chosen = library.TrainingLibrary(1, request.param)
    monkeypatch.setattr(library, "get_library", lambda: chosen)
    return str(request.param)
