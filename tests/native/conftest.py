"""The ISAs, for tests of the native decoder."""

from __future__ import annotations

import pytest

from scanline.kernels.native import abi as native
from scanline.kernels.native.build import NativeBuildError
from scanline.kernels.native.cpu import machine_isas


@pytest.fixture(params=machine_isas())
def isa(request: pytest.FixtureRequest) -> str:
    """Give each of the machine's ISAs; skips, visibly, those that this CPU or compiler lacks."""
    name = str(request.param)
    try:
        native.load_library(name)
    except NativeBuildError as error:
        pytest.skip(str(error))
    return name
