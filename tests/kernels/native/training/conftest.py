"""What tests of training's native passes share: one of the ISAs that this CPU has."""

from __future__ import annotations

import pytest

from scanline.kernels.native import cpu
from scanline.kernels.native.build import NativeBuildError, find_compiler
from scanline.kernels.native.training import library
from tests.conftest import build_sooner, some_of


@pytest.fixture(params=some_of(cpu.cpu_isas()))
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run everything on one of the ISAs that this CPU has."""
    try:
        find_compiler()
    except NativeBuildError as missing:
        pytest.skip(str(missing))
    build_sooner(request.param, monkeypatch)
    chosen = library.TrainingLibrary(1, request.param)
    monkeypatch.setattr(library, "get_library", lambda: chosen)
    return str(request.param)
