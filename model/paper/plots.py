"""Plots of the experiments, with matplotlib (``pip install -e '.[paper]'``)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from scanline.model.paper import copying
from scanline.model.paper.tables import best_drawing, by_kind, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from scanline.model.paper.report import Row


def plot(name: str, rows: dict[str, Row], path: Path) -> None:
    """Draw an experiment's rows as a PNG; raises ``ValueError`` where matplotlib is missing."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError(
            "plots need matplotlib: pip install -e '.[paper]', then run this again"
        ) from None
    wide = name in ("figure1", "table1", "table2", "table3")
    figure = Figure(figsize=(10, 4.2) if wide else (7, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    if name == "figure1":
        left, right = figure.subplots(1, 2)
        _lengths(left, rows, "seconds", 1, "seconds a pass")
        _lengths(right, rows, "bytes", 1e-6, "MB held at most")
        left.legend(fontsize=7)
    elif name == "figure2":
        _curves(figure.subplots(), rows)
    elif name == "supplement":
        _sweep(figure.subplots(), rows)
    elif name == "table3":
        left, right = figure.subplots(1, 2)
        _speech(left, right, rows)
    else:
        left, right = figure.subplots(1, 2)
        _speeds(left, rows)
        _bits(right, rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _lengths(axes: Axes, rows: dict[str, Row], what: str, scale: float, label: str) -> None:
    for kind, points in by_kind(rows.values()).items():
        measured = [row for row in points if "stopped" not in row]
        style = "--" if ":" in kind else "-"
        x, y = [r["length"] for r in measured], [scale * r[what] for r in measured]
        axes.loglog(x, y, style, marker="o", markersize=3, label=kind, base=2)
    axes.set_xlabel("length")
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)


def _curves(axes: Axes, rows: dict[str, Row]) -> None:
    for number, (kind, runs) in enumerate(by_kind(rows.values()).items()):
        for run in runs:
            steps = [run["every"] * (i + 1) for i in range(len(run["losses"]))]
            label = kind if run is runs[0] else None
            axes.plot(steps, run["losses"], color=f"C{number}", alpha=0.7, label=label)
    axes.set_xlabel("step")
    axes.set_ylabel(f"loss, nats a symbol of {copying.SYMBOLS}")
    axes.set_yscale("log")
    axes.grid(alpha=0.3)
    axes.legend()


def _speeds(axes: Axes, rows: dict[str, Row]) -> None:
    best = best_drawing(rows)
    axes.barh(
        [label(row) for row in best.values()], [row["images_per_second"] for row in best.values()]
    )
    axes.set_xscale("log")
    axes.set_xlabel("images a second")
    axes.grid(alpha=0.3, axis="x")


def _bits(axes: Axes, rows: dict[str, Row]) -> None:
    trained = [row for key, row in rows.items() if key.startswith("train ")]
    axes.barh(
        [row["kind"] for row in trained], [row["bits_per_dim"] for row in trained],
        xerr=[row["standard_error"] for row in trained],
    )  # fmt: skip
    axes.set_xlabel("bits/dim, less is better")
    axes.grid(alpha=0.3, axis="x")


def _speech(left: Axes, right: Axes, rows: dict[str, Row]) -> None:
    trained = [row for key, row in rows.items() if key.startswith("train ")]
    kinds = [row["kind"] for row in trained]
    left.barh(
        kinds, [100 * row["error_rate"] for row in trained],
        xerr=[100 * row["standard_error"] for row in trained],
    )  # fmt: skip
    left.set_xlabel("phonemes wrong, %, after the same time")
    right.barh(kinds, [rows[f"epoch {kind}"]["seconds"] for kind in kinds])
    right.set_xlabel("seconds an epoch")
    for axes in (left, right):
        axes.grid(alpha=0.3, axis="x")


def _sweep(axes: Axes, rows: dict[str, Row]) -> None:
    lines: dict[str, list[Row]] = {}
    for key, row in rows.items():
        if " mnist " in key:
            lines.setdefault(f"{label(row)}, {row['device']}", []).append(row)
    for line, points in lines.items():
        x, y = [row["batch"] for row in points], [row["images_per_second"] for row in points]
        axes.loglog(x, y, marker="o", markersize=3, label=line, base=2)
    axes.set_xlabel("images at once (MNIST)")
    axes.set_ylabel("images a second")
    axes.set_yscale("log", base=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
