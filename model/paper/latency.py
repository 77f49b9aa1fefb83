"""The supplement: seconds for a single image, on CPU and GPU, and images/s by the batch's size."""

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
    """At how many positions a step is timed, and the batches of MNIST's network."""

    positions: int
    stateful_batches: tuple[int, ...]
    anew_batches: tuple[int, ...]


def devices() -> list[torch.device]:
    """Give the CPU, and a CUDA device where there is one."""
    names = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    return [torch.device(name) for name in names]


class _Supplement(Experiment[LatencySettings]):
    name = "supplement"
    title = "Supplement: one image, and more at once"
    inches = (7, 4.2)
    full = LatencySettings(
        positions=17, stateful_batches=(1, 4, 16, 64, 256), anew_batches=(1, 4, 16)
    )
    quick = LatencySettings(positions=3, stateful_batches=(1, 4, 16, 64), anew_batches=(1, 4))

    def rows(
        self, settings: LatencySettings, report: Report, data_dir: Path | None, device: torch.device
    ) -> Rows:
        for place in devices():
            for data in DATA:
                for way in sampling_methods(place):
                    stateful, anew = settings.stateful_batches, settings.anew_batches
                    batches = anew if way in RECOMPUTED else stateful
                    for batch in batches if data == "mnist" else batches[:1]:
                        config = PRESETS[f"{data}-paper"]
                        yield (
                            f"{place.type} {data} {way} {batch}",
                            partial(time_sampling, way, config, batch, settings.positions, place),
                        )

    def caption(self, s: Row) -> str:
        return (
            f"The paper's networks. {timing_note(s)} In brackets, how many times as fast as "
            "`softmax` on the same device."
        )

    def table(self, rows: dict[str, Row]) -> str:
        lines = []
        for device, data in dict.fromkeys((key.split()[0], key.split()[1]) for key in rows):
            mine = _single(rows, device, data)
            for way, row in mine.items():
                claim = LATENCY[data].get(way)
                softmax = LATENCY[data]["softmax"]
                place = int(device != "cpu")
                theirs = _latent(claim[place], softmax[place]) if claim else "–"
                ours = _latent(row["seconds"], mine["softmax"]["seconds"])
                lines.append([f"{data}, {device}: {label(row)}", theirs, ours])
        one = markdown_table(["seconds for one image", "paper", "ours"], lines)
        swept = _swept(rows)
        batches = sorted({row["batch"] for points in swept.values() for row in points})
        more = []
        for line, points in swept.items():
            speeds = {row["batch"]: row["images_per_second"] for row in points}
            more.append([line, *(number(speeds.get(batch)) for batch in batches)])
        head = ["MNIST, images/s by images at once", *map(str, batches)]
        return f"{one}\n\n{markdown_table(head, more)}"

    def verdicts(self, rows: dict[str, Row]) -> Iterable[Verdict]:
        for device in ("cpu", "cuda"):
            for data in DATA:
                seconds = {way: row["seconds"] for way, row in _single(rows, device, data).items()}
                others = ("softmax", "stateful-softmax", "lsh-1", "lsh-4")
                if "linear" in seconds and all(way in seconds for way in others):
                    nearest = min(others, key=lambda way: seconds[way])
                    yield Verdict(
                        f"one {data} image is drawn fastest by linear attention ({device})",
                        f"{number(seconds['linear'])} s; {nearest} {number(seconds[nearest])} s",
                        seconds["linear"] < seconds[nearest],
                    )

    def plot(self, figure: Figure, rows: dict[str, Row]) -> None:
        axes = figure.subplots()
        for line, points in _swept(rows).items():
            x, y = [row["batch"] for row in points], [row["images_per_second"] for row in points]
            axes.loglog(x, y, marker="o", markersize=3, label=line, base=2)
        axes.set_xlabel("images at once (MNIST)")
        axes.set_ylabel("images a second")
        axes.set_yscale("log", base=10)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)


def _single(rows: dict[str, Row], device: str, data: str) -> dict[str, Row]:
    """Give a device's rows of one image, by way."""
    mine = (row for key, row in rows.items() if key.startswith(f"{device} {data} "))
    return {row["way"]: row for row in mine if row["batch"] == 1}


def _swept(rows: dict[str, Row]) -> dict[str, list[Row]]:
    """Give MNIST's rows of every batch, by device and way."""
    lines: dict[str, list[Row]] = {}
    for key, row in rows.items():
        if " mnist " in key:
            lines.setdefault(f"{row['device']}: {label(row)}", []).append(row)
    return lines


def _latent(seconds: float, softmax: float) -> str:
    return f"{number(seconds)} ({number(softmax / seconds)} ×)"


SUPPLEMENT = _Supplement()
