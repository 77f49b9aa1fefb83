"""Learning curve of a run as a PNG, plotted from its log."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from scanline.model.atomic_files import write_atomically

_SIZE, _LEFT, _TOP, _RIGHT, _BOTTOM = (900, 480), 70, 40, 20, 50
TRAINING_COLOR, VALIDATION_COLOR = (90, 140, 210), (200, 80, 30)
_GREY = (150, 150, 150)
_WINDOW = 0.02  # moving average of the training curve, as a share of the run


def read_curve(log: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Read the training and validation curves as ``[points, 2]`` of (step, bits/dim), by step.

    A resumed run logs some steps twice; the last entry counts. Incomplete lines are skipped.
    """
    training: dict[int, float] = {}
    validation: dict[int, float] = {}
    for line in log.read_text().splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        kind, key = (
            (validation, "validation") if "validation" in entry else (training, "bits_per_dim")
        )
        kind[int(entry["step"])] = float(entry[key])
    pairs = [sorted(kind.items()) for kind in (training, validation)]
    return np.array(pairs[0]).reshape(-1, 2), np.array(pairs[1]).reshape(-1, 2)


def _smoothed(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the trailing moving average; the first windows are shorter."""
    window = max(1, round(len(points) * _WINDOW))
    sums = np.cumsum(np.insert(points[:, 1], 0, 0.0))
    ends = np.arange(1, len(points) + 1)
    begins = np.maximum(ends - window, 0)
    return np.column_stack([points[:, 0], (sums[ends] - sums[begins]) / (ends - begins)])


def _ticks(low: float, high: float) -> list[float]:
    """Return up to seven round tick values between ``low`` and ``high``."""
    step = 10.0 ** np.floor(np.log10((high - low) / 5))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= 6)
    return [float(tick) for tick in np.arange(np.ceil(low / step) * step, high + step / 1e6, step)]


def draw_curve(log: Path, path: Path) -> None:
    """Plot ``log.jsonl`` as a PNG: training (2 % moving average) and validation bits/dim.

    The y axis is scaled to the points after the first tenth, which clips the steep initial fall.
    Write nothing if the log is empty.
    """
    training, validation = read_curve(log)
    if len(training) == 0:
        return
    line = _smoothed(training)
    shown = np.concatenate([line[len(line) // 10 :, 1], validation[len(validation) // 10 :, 1]])
    low, high = float(shown.min()), float(shown.max())
    low, high = low - 0.05 * (high - low + 0.01), high + 0.05 * (high - low + 0.01)
    last = max(1.0, float(line[-1, 0]))
    width, height = _SIZE[0] - _LEFT - _RIGHT, _SIZE[1] - _TOP - _BOTTOM

    def to_pixels(point: NDArray[np.float64]) -> tuple[float, float]:
        x, y = point[0] / last, (np.clip(point[1], low, high) - low) / (high - low)
        return _LEFT + x * width, _TOP + (1 - y) * height

    image = Image.new("RGB", _SIZE, "white")
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(14)
    for tick in _ticks(low, high):
        y = to_pixels(np.array([0, tick]))[1]
        draw.line([(_LEFT, y), (_SIZE[0] - _RIGHT, y)], fill=(230, 230, 230))
        draw.text((_LEFT - 8, y), f"{tick:.4g}", fill=_GREY, font=font, anchor="rm")
    for tick in _ticks(0, last):
        x = to_pixels(np.array([tick, low]))[0]
        draw.text((x, _SIZE[1] - _BOTTOM + 10), f"{tick:,.0f}", fill=_GREY, font=font, anchor="mt")
    draw.text((_LEFT, 12), "bits/dim: training", fill=TRAINING_COLOR, font=font)
    draw.text((_LEFT + 150, 12), "validation (averaged weights)", fill=VALIDATION_COLOR, font=font)
    draw.text((_SIZE[0] - _RIGHT, _SIZE[1] - 8), "steps", fill=_GREY, font=font, anchor="rs")
    draw.line([to_pixels(point) for point in line], fill=TRAINING_COLOR, width=2)
    for point in validation:
        x, y = to_pixels(point)
        draw.ellipse([x - 4, y - 4, x + 4, y + 4], fill=VALIDATION_COLOR)
    content = io.BytesIO()
    image.save(content, "PNG")
    write_atomically(path, content.getvalue())
