"""Fixture that runs a test with each backend."""

from __future__ import annotations

import pytest
import torch

from scanline.model.config import ModelConfig
from scanline.model.decoders.base import BackendError
from scanline.model.decoders.factory import create_decoder
from scanline.model.network import LinearTransformer
from tests.conftest import tiny_config
from tests.model.decoders.fixtures import BACKENDS


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """Return each backend's name; skip those that cannot run here or lack an option of the config.

    The reason is shown. A test's config is its parameter of this name.
    """
    name = str(request.param)
    try:
        decoder = create_decoder(LinearTransformer(tiny_config()), 1, name)
    except BackendError as error:
        there = torch.version.cuda and torch.cuda.is_available()
        if name == "triton" and there and torch.cuda.get_device_capability() >= (8, 0):
            raise
        pytest.skip(f"{name}: {error}")
    callspec = getattr(request.node, "callspec", None)
    config = callspec.params.get("config") if callspec else None
    if isinstance(config, ModelConfig) and (reason := decoder.unsupported(config)):
        pytest.skip(f"{name}: {reason}")
    return name
