"""Models for servers in their own process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.service.fixtures import GREY, save_tiny
from tests.service.server.server_process import SLOW


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    save_tiny(folder, "slow", SLOW)
    save_tiny(folder, "tiny", GREY)
    return folder
