"""Local engine that the cluster tests compare with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scanline.model.checkpoint import load_checkpoint
from scanline.service.engine.engine import Engine
from scanline.service.state.registry import open_engine
from tests.cluster.ray_service import CONFIG
from tests.service.fixtures import save_tiny, settings


@pytest.fixture(scope="module")
def local_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Run an engine in this process with the weights of every ``ClusterServer``."""
    folder = tmp_path_factory.mktemp("local_engine")
    save_tiny(folder, config=CONFIG)
    engine = open_engine(load_checkpoint(folder / "tiny.safetensors"), settings(slots=64))
    yield engine
    engine.close(0.0)
