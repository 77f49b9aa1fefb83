"""A run's learning curve as a picture, drawn from its log."""

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
_WINDOW = 0.02  # share of the run over which the training curve is averaged


def read_curve(log: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Give training and validation as ``[points, 2]``, step and bits/dim, in the order of steps.

    A run that was resumed from a checkpoint wrote some steps twice: the last time counts. A line
    that was never written whole is left out.
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
    """Average over a window that is whole only where it has been filled."""
    window = max(1, round(len(points) * _WINDOW))
    sums = np.cumsum(np.insert(points[:, 1], 0, 0.0))
    ends = np.arange(1, len(points) + 1)
    begins = np.maximum(ends - window, 0)
    return np.column_stack([points[:, 0], (sums[ends] - sums[begins]) / (ends - begins)])


def _ticks(low: float, high: float) -> list[float]:
    """Give about six round numbers within."""
    step = 10.0 ** np.floor(np.log10((high - low) / 5))
    step *= next(times for times in (1, 2, 5, 10) if (high - low) / (step * times) <= 6)
    return [float(tick) for tick in np.arange(np.ceil(low / step) * step, high + step / 1e6, step)]


def draw_curve(log: Path, path: Path) -> None:
    """Draw ``log.jsonl`` into a PNG: training, averaged over 2 % of the run, and validation.

    The heights are those after the first tenth, whose steep fall is cut off. Writes nothing for an
    empty log.
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

    def place(point: NDArray[np.float64]) -> tuple[float, float]:
        across, up = point[0] / last, (np.clip(point[1], low, high) - low) / (high - low)
        return _LEFT + across * width, _TOP + (1 - up) * height

    image = Image.new("RGB", _SIZE, "white")
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(14)
    for tick in _ticks(low, high):
        y = place(np.array([0, tick]))[1]
        pen.line([(_LEFT, y), (_SIZE[0] - _RIGHT, y)], fill=(230, 230, 230))
        pen.text((_LEFT - 8, y), f"{tick:.4g}", fill=_GREY, font=font, anchor="rm")
    for tick in _ticks(0, last):
        x = place(np.array([tick, low]))[0]
        pen.text((x, _SIZE[1] - _BOTTOM + 10), f"{tick:,.0f}", fill=_GREY, font=font, anchor="mt")
    pen.text((_LEFT, 12), "bits/dim: training", fill=TRAINING_COLOR, font=font)
    pen.text((_LEFT + 150, 12), "validation (averaged weights)", fill=VALIDATION_COLOR, font=font)
    pen.text((_SIZE[0] - _RIGHT, _SIZE[1] - 8), "steps", fill=_GREY, font=font, anchor="rs")
    pen.line([place(point) for point in line], fill=TRAINING_COLOR, width=2)
    for point in validation:
        x, y = place(point)
        pen.ellipse([x - 4, y - 4, x + 4, y + 4], fill=VALIDATION_COLOR)
    content = io.BytesIO()
    image.save(content, "PNG")
    write_atomically(path, content.getvalue())
