"""Fixture of the training library's tests: the ISAs of this CPU."""

from __future__ import annotations

import pytest

from scanline.kernels.native import cpu
from scanline.kernels.native.build import NativeBuildError, find_compiler
from scanline.kernels.native.training import library
from tests.conftest import isa_params, use_fast_build


@pytest.fixture(params=isa_params(cpu.cpu_isas()))
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Use a library built for each ISA of this CPU, with one thread."""
    try:
        find_compiler()
    except NativeBuildError as missing:
        pytest.skip(str(missing))
    use_fast_build(request.param, monkeypatch)
    chosen = library.TrainingLibrary(1, request.param)
    monkeypatch.setattr(library, "get_library", lambda: chosen)
    return str(request.param)
