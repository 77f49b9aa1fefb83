"""Pictures drawn without a server: where they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from scanline.model.checkpoint import Checkpoint
from scanline.service.cli.temporary_engine import draw_grid
from scanline.service.engine.generation import GenerationSpec
from tests.conftest import read_fifo
from tests.service.fixtures import tiny_model


def draw_one(out: Path) -> None:
    spec = GenerationSpec(n=1, seed=0)
    draw_grid(
        Checkpoint("tiny", tiny_model()), spec, out, 1, "reference", threads=None, metadata=True
    )


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (".", r"is a folder: name a file in it, such as .*samples\.png"),
        ("text/a.png", r"cannot be written \(.*\): name another file"),
        ("/proc/none/a.png", r"cannot be written \(.*\): name another file"),
    ],
)
def test_unwritable_output_is_rejected_before_drawing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str, message: str
) -> None:
    (tmp_path / "text").touch()
    monkeypatch.setattr("scanline.service.cli.temporary_engine.create_decoder", None)
    with pytest.raises(ValueError, match=message):
        draw_one(tmp_path / out)


def test_image_is_written_to_a_fifo(tmp_path: Path) -> None:
    with read_fifo(tmp_path / "fifo") as read:
        for out in (tmp_path / "fifo", tmp_path / "file.png"):
            draw_one(out)
    assert read == [(tmp_path / "file.png").read_bytes()]
