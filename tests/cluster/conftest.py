"""What the tests of a cluster compare with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scanline.model.checkpoint import load_checkpoint
from scanline.service.engine.engine import Engine
from scanline.service.state import open_engine
from tests.cluster.ray_service import CONFIG
from tests.service.fixtures import save_tiny, settings


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Give an engine in this process, with the weights of every ``LoadedModel``."""
    folder = tmp_path_factory.mktemp("alone")
    save_tiny(folder, config=CONFIG)
    engine = open_engine(load_checkpoint(folder / "tiny.safetensors"), settings(slots=64))
    yield engine
    engine.close(0.0)
