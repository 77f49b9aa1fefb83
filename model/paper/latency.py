"""Supplement: latency of one image on CPU and GPU, and images/s by batch size."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from scanline.model.config import PRESETS
from scanline.model.paper.claims import LATENCY
from scanline.model.paper.experiment import Experiment, Rows, Verdict
from scanline.model.paper.markdown import markdown_table, number
from scanline.model.paper.report import Report, Row
from scanline.model.paper.sampling_speed import (
    RECOMPUTED,
    label,
    sampling_methods,
    time_sampling,
    timing_note,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DATA = ("mnist", "cifar10")


@dataclass(frozen=True, kw_only=True)
class LatencySettings:
    """Settings: number of timed positions, and batch sizes of the MNIST network."""

    positions: int
    stateful_batches: tuple[int, ...]
    recomputed_batches: tuple[int, ...]


def devices() -> list[torch.device]:
    """Return the CPU, and a CUDA device if there is one."""
    names = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    return [torch.device(name) for name in names]


class _Supplement(Experiment[LatencySettings]):
    name = "supplement"
    title = "Supplement: latency and throughput"
    inches = (7, 4.2)
    full = LatencySettings(
        positions=17, stateful_batches=(1, 4, 16, 64, 256), recomputed_batches=(1, 4, 16)
    )
    quick = LatencySettings(positions=3, stateful_batches=(1, 4, 16, 64), recomputed_batches=(1, 4))

    def rows(
        self, settings: LatencySettings, report: Report, data_dir: Path | None, device: torch.device
    ) -> Rows:
        for target in devices():
            for data in DATA:
                for method in sampling_methods(target):
                    stateful, anew = settings.stateful_batches, settings.recomputed_batches
                    batches = anew if method in RECOMPUTED else stateful
                    positions = settings.positions
                    for batch in batches if data == "mnist" else batches[:1]:
                        config = PRESETS[f"{data}-paper"]
                        yield (
                            f"{target.type} {data} {method} {batch}",
                            partial(time_sampling, method, config, batch, positions, target),
                        )

    def caption(self, s: Row) -> str:
        return (
            f"Measured with the paper's networks. {timing_note(s)} The speed relative to `softmax` "
            "on the same device is in brackets."
        )

    def table(self, rows: dict[str, Row]) -> str:
        lines = []
        for device, data in dict.fromkeys((key.split()[0], key.split()[1]) for key in rows):
            mine = _single(rows, device, data)
            for method, row in mine.items():
                claim = LATENCY[data].get(method)
                softmax = LATENCY[data]["softmax"]
                column = int(device != "cpu")
                theirs = _latency(claim[column], softmax[column]) if claim else "–"
                ours = _latency(row["seconds"], mine["softmax"]["seconds"])
                lines.append([f"{data}, {device}: {label(row)}", theirs, ours])
        one = markdown_table(["seconds per image", "paper", "ours"], lines)
        swept = _swept(rows)
        batches = sorted({row["batch"] for points in swept.values() for row in points})
        more = []
        for line, points in swept.items():
            speeds = {row["batch"]: row["images_per_second"] for row in points}
            more.append([line, *(number(speeds.get(batch)) for batch in batches)])
        head = ["MNIST, images/s by batch size", *map(str, batches)]
        return f"{one}\n\n{markdown_table(head, more)}"

    def verdicts(self, rows: dict[str, Row]) -> Iterable[Verdict]:
        for device in ("cpu", "cuda"):
            for data in DATA:
                single = _single(rows, device, data)
                seconds = {method: row["seconds"] for method, row in single.items()}
                others = ("softmax", "stateful-softmax", "lsh-1", "lsh-4")
                if "linear" in seconds and all(method in seconds for method in others):
                    nearest = min(others, key=lambda method: seconds[method])
                    yield Verdict(
                        f"linear attention has the lowest latency for one {data} image ({device})",
                        f"{number(seconds['linear'])} s; {nearest} {number(seconds[nearest])} s",
                        seconds["linear"] < seconds[nearest],
                    )

    def plot(self, figure: Figure, rows: dict[str, Row]) -> None:
        axes = figure.subplots()
        for line, points in _swept(rows).items():
            x, y = [row["batch"] for row in points], [row["images_per_second"] for row in points]
            axes.loglog(x, y, marker="o", markersize=3, label=line, base=2)
        axes.set_xlabel("batch size (MNIST)")
        axes.set_ylabel("images/s")
        axes.set_yscale("log", base=10)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)


def _single(rows: dict[str, Row], device: str, data: str) -> dict[str, Row]:
    """Return a device's rows with batch size 1, by method."""
    mine = (row for key, row in rows.items() if key.startswith(f"{device} {data} "))
    return {row["method"]: row for row in mine if row["batch"] == 1}


def _swept(rows: dict[str, Row]) -> dict[str, list[Row]]:
    """Return the MNIST rows of all batch sizes, by device and method."""
    lines: dict[str, list[Row]] = {}
    for key, row in rows.items():
        if " mnist " in key:
            lines.setdefault(f"{row['device']}: {label(row)}", []).append(row)
    return lines


def _latency(seconds: float, softmax: float) -> str:
    return f"{number(seconds)} ({number(softmax / seconds)} ×)"


SUPPLEMENT = _Supplement()
