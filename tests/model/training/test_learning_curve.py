"""Tests of the learning curve: reading the log and plotting."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

from scanline.model.training.learning_curve import (
    TRAINING_COLOR,
    VALIDATION_COLOR,
    _smoothed,
    draw_curve,
    read_curve,
)


def write_log(path: Path, entries: list[dict[str, float]]) -> None:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def test_repeated_steps_count_once(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    steps = [(1, 5.0), (2, 4.0), (3, 3.9), (2, 4.5), (3, 3.5)]
    entries = [{"step": step, "bits_per_dim": bits} for step, bits in steps]
    write_log(log, [*entries, {"step": 3, "validation": 3.2, "error": 0.1}])
    training, validation = read_curve(log)
    assert training.tolist() == [[1, 5.0], [2, 4.5], [3, 3.5]]
    assert validation.tolist() == [[3, 3.2]]


def test_training_curve_is_a_moving_average() -> None:
    points = np.column_stack([np.arange(200.0), np.arange(200.0)])
    line = _smoothed(points)
    assert line[:, 0].tolist() == points[:, 0].tolist()
    assert line[:4, 1].tolist() == [0, 0.5, 1, 1.5]  # shorter windows
    assert line[4:, 1].tolist() == (np.arange(4, 200) - 1.5).tolist()


def test_plotted_curve_falls(tmp_path: Path) -> None:
    log, path = tmp_path / "log.jsonl", tmp_path / "curve.png"
    entries = [{"step": step, "bits_per_dim": 2 + 100 / step} for step in range(1, 500)]
    write_log(log, [*entries, {"step": 400, "validation": 2.1}])
    draw_curve(log, path)
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB"))
    line = (pixels[35:435] == TRAINING_COLOR).all(-1)  # not the legend
    heights = [np.nonzero(line[:, x])[0].mean() for x in (120, 300, 500, 800)]
    assert heights == sorted(heights)
    assert (pixels == VALIDATION_COLOR).all(-1).any()


def test_empty_log_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").touch()
    draw_curve(tmp_path / "log.jsonl", tmp_path / "curve.png")
    assert not (tmp_path / "curve.png").exists()
