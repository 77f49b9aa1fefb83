"""Images/s by batch size, and the latency of one image: tables 1, 2, 4 and 5 of the paper."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

import torch

from scanline.model.config import PRESETS, ModelConfig
from scanline.model.decoders.memory import SHARE, free_memory
from scanline.model.paper import peers
from scanline.model.paper.experiment import Experiment, Rows, UnitRun
from scanline.model.paper.markdown import markdown_table, number
from scanline.model.paper.published import IMAGES, LATENCY
from scanline.model.paper.quantity import largest_spread
from scanline.model.paper.report import Row
from scanline.model.paper.sampling_speed import (
    NATIVE,
    PEER,
    STATEFUL,
    random_network,
    sampling_methods,
    time_sampling,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DATA = {"mnist": "table1", "cifar10": "table2"}  # the paper's table of images/s of each


@dataclass(frozen=True, kw_only=True)
class LatencySettings:
    """Settings.

    Attributes:
        positions: Number of positions at which a step is timed.
        batches: Batch sizes; a method stops at the first that takes too long or does not fit.
        max_step_seconds: Longest time of a step.
        data: Data sets whose networks are timed.
    """

    positions: int = 5
    batches: tuple[int, ...] = (1, 16, 64, 256, 1024, 10_000)
    max_step_seconds: float = 4.0
    data: tuple[str, ...] = ("mnist", "cifar10")


def state_bytes(method: str, config: ModelConfig) -> int:
    """Return the bytes of one image's state after its last step; 0 if it is computed again."""
    kind = STATEFUL.get(method, "linear" if method.startswith("linear") else None)
    if kind is None:
        return 0
    network = random_network(kind, config, torch.device("cpu"))
    states = network.initial_state(1)
    return sum(tensor.nbytes for state in states for tensor in state.values())


def measure(
    method: str,
    data: str,
    batch: int,
    settings: LatencySettings,
    before: Row | None,
    device: torch.device,
) -> Row:
    """Time a batch size and return its row.

    The row has three timings, or the reason in ``stopped`` if this batch size would exceed the time
    limit or the memory, judged by ``before``, the row of the next smaller one.
    """
    config = PRESETS[f"{data}-paper"]
    facts: Row = {"method": method, "data": data, "device": device.type, "batch": batch}
    if before:
        if "stopped" in before:
            return facts | {"stopped": before["stopped"]}
        step = median(before["seconds"]) / config.steps * batch / before["batch"]
        if step > settings.max_step_seconds:
            return facts | {"stopped": f"{settings.max_step_seconds:g} s per step"}
    cuda = device.type == "cuda"
    memory = torch.cuda.mem_get_info(device)[0] if cuda else free_memory()
    if batch * state_bytes(method, config) > SHARE * memory:
        return facts | {"stopped": "memory"}
    try:
        return facts | time_sampling(method, config, batch, settings.positions, device)
    except torch.OutOfMemoryError:  # of a GPU, by methods that keep no state
        return facts | {"stopped": "memory"}


class _Supplement(Experiment[LatencySettings]):
    name = "supplement"
    title = "Tables 1, 2, 4 and 5: drawing speed"

    def units(self, settings: LatencySettings) -> list[str]:
        return [
            f"{device}-{data}-{method}"
            for device in ("cpu", "cuda")
            for data in settings.data
            for method in sampling_methods(device)
        ]

    def missing(self, unit: str) -> str | None:
        if unit.startswith("cuda-") and not torch.cuda.is_available():
            return "an NVIDIA GPU"
        return peers.missing() if unit.endswith(PEER) else None

    def rows(self, run: UnitRun[LatencySettings]) -> Rows:
        name, data, method = run.unit.split("-", 2)
        settings = run.settings
        key = f"{name} {data} {method}"

        def make(index: int) -> Row:
            batches = settings.batches
            before = run.report.rows.get(f"{key} {batches[index - 1]}") if index else None
            return measure(method, data, batches[index], settings, before, torch.device(name))

        for index, batch in enumerate(settings.batches):
            yield f"{key} {batch}", partial(make, index)

    def caption(self, s: Row) -> str:
        return (
            "Measured with the paper's networks and random weights. `softmax` and `lsh` compute "
            "the whole network again in every step, the others keep a state. A step is timed three "
            f"times at {s['positions']} positions of an image and integrated over all; the table "
            "has medians, in brackets how many times as fast as `softmax` they are, and the "
            "largest spread as a share of the median. A method stops at the "
            f"batch size at which a step would take more than {s['max_step_seconds']:g} seconds, "
            f"or that does not fit into memory. `{NATIVE}` is this project's decoder, timed three "
            "times for the first pixels of an image, because all its steps take the same time. "
            f"`{PEER}` is the authors' decoder. The other rows are plain PyTorch, in which "
            "`softmax` uses PyTorch's fused kernel."
        )

    def table(self, rows: dict[str, Row]) -> str:
        parts = []
        for device, data in dict.fromkeys((row["device"], row["data"]) for row in rows.values()):
            mine = by_method(rows, device, data)
            parts += [_speeds(mine, device, data), _batches(mine, device, data)]
        return "\n\n".join(parts)

    def plot(self, figure: Figure, rows: dict[str, Row]) -> None:
        pairs = [*dict.fromkeys((row["device"], row["data"]) for row in rows.values())]
        for axes, (device, data) in zip(
            figure.subplots(1, len(pairs), squeeze=False)[0], pairs, strict=True
        ):
            for method, points in by_method(rows, device, data).items():
                x = [row["batch"] for row in points]
                axes.loglog(
                    x, [speed(row) for row in points], marker="o", markersize=3, label=method,
                    base=2,
                )  # fmt: skip
            axes.set_yscale("log", base=10)
            axes.set_xlabel(f"batch size ({data}, {device})")
            axes.set_ylabel("images/s")
            axes.grid(alpha=0.3)
            axes.legend(fontsize=7)


def by_method(rows: dict[str, Row], device: str, data: str) -> dict[str, list[Row]]:
    """Return the measured rows of a device and data set by method."""
    found: dict[str, list[Row]] = {}
    for row in rows.values():
        if (row["device"], row["data"]) == (device, data) and "stopped" not in row:
            found.setdefault(row["method"], []).append(row)
    return found


def speed(row: Row) -> float:
    """Return a row's images/s."""
    found: float = row["batch"] / median(row["seconds"])
    return found


def fastest(points: list[Row]) -> Row:
    """Return a method's row with the highest images/s."""
    return max(points, key=speed)


def _speeds(mine: dict[str, list[Row]], device: str, data: str) -> str:
    """Compare the best images/s and the latency with the paper's, relative to softmax."""
    throughput, latency = IMAGES[DATA[data]], LATENCY[data]
    column = int(device != "cpu")
    softmax = mine.get("softmax")
    lines = []
    for method, points in mine.items():
        published, best = throughput.get(method), fastest(points)
        one = median(points[0]["seconds"]) if points[0]["batch"] == 1 else None
        by_softmax = median(softmax[0]["seconds"]) if softmax else None
        paper_speed = published and published.images_per_second
        paper_seconds = latency[method][column] if method in latency else None
        lines.append([
            f"{method} ({best['implementation']})",
            _times(paper_speed, throughput["softmax"].images_per_second),
            _times(speed(best), speed(fastest(softmax)) if softmax else None),
            f"{best['batch']:,}",
            _times(paper_seconds, latency["softmax"][column], inverse=True),
            _times(one, by_softmax, inverse=True),
            largest_spread(points),
        ])  # fmt: skip
    head = [
        f"{data}, {device}", "images/s, paper's GPU", "ours", "batch size",
        f"s for one image, paper's {device.upper()}", "ours", "largest spread",
    ]  # fmt: skip
    return markdown_table(head, lines)


def _batches(mine: dict[str, list[Row]], device: str, data: str) -> str:
    batches = sorted({row["batch"] for points in mine.values() for row in points})
    lines = []
    for method, points in mine.items():
        speeds = {row["batch"]: speed(row) for row in points}
        lines.append([method, *(number(speeds.get(batch)) for batch in batches)])
    head = [f"{data}, {device}: images/s by batch size", *(f"{batch:,}" for batch in batches)]
    return markdown_table(head, lines)


def _times(value: float | None, softmax: float | None, *, inverse: bool = False) -> str:
    """Format a value, with its ratio to softmax's in brackets: how many times as fast it is."""
    if value is None or softmax is None:
        return number(value)
    return f"{number(value)} ({number(softmax / value if inverse else value / softmax)} ×)"


SUPPLEMENT = _Supplement(
    {
        "quick": LatencySettings(positions=2, batches=(1, 16), max_step_seconds=0.3),
        "default": LatencySettings(),
        "full": LatencySettings(positions=33, max_step_seconds=60.0),
    }
)
