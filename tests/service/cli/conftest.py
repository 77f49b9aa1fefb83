"""Fixtures of the command-line tests: an empty folder, two small models, and photographs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.service.fixtures import COLOUR, GREY, logs_kept, random_picture, save_tiny


@pytest.fixture(autouse=True)
def _isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Run in an empty folder, and restore the logging and the threads of the test process."""
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    with logs_kept():
        yield
    torch.set_num_threads(threads)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    save_tiny(tmp_path / "weights", "tiny", GREY)
    save_tiny(tmp_path / "weights", "colour", COLOUR)
    return tmp_path / "weights"


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """Twenty small pictures in two classes."""
    folder = tmp_path / "photographs"
    for j in range(20):
        path = folder / ("cats" if j % 2 else "dogs") / f"{j}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        random_picture(GREY, j).resize((9, 7)).save(path)
    return folder
