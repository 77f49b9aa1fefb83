"""Figure 1: time and memory of a forward and backward pass of attention by sequence length."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.profiler import ProfilerActivity, profile

from scanline.kernels.attention.lsh import lsh_attention, random_rotations
from scanline.kernels.attention.softmax import naive_softmax_attention, softmax_attention
from scanline.kernels.ops.attention import linear_attention
from scanline.model.decoders.memory import SHARE, free_memory
from scanline.model.layers.lsh import BUCKETS
from scanline.model.paper import peers
from scanline.model.paper.experiment import Experiment, Rows, Verdict
from scanline.model.paper.markdown import markdown_table, number
from scanline.model.paper.report import Report, Row, by_kind, timed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class ScalingSettings:
    """Settings; a kind of attention stops at the first length that takes too long.

    Args:
        shortest: first sequence length.
        longest: last sequence length.
        n_heads: number of heads.
        head_size: features per head.
        max_seconds: longest time of a pass.
        repeats: number of timed passes, of which the fastest counts.
    """

    shortest: int = 2**9
    longest: int = 2**16
    n_heads: int = 8
    head_size: int = 32
    max_seconds: float = 60.0
    repeats: int = 5


KINDS = ("linear", "softmax", "softmax, whole matrix", "lsh-1", "lsh-4", "lsh-8")


def attention(kind: str, length: int, size: ScalingSettings) -> peers.Attend | None:
    """Return causal attention of a kind as a function of q, k and v, or None if not installed.

    Kinds of the peer are named ``fast-transformers: KIND``.
    """
    if kind.startswith(peers.NAME):
        return peers.attentions(length).get(kind.removeprefix(f"{peers.NAME}: "))
    if kind == "linear":
        return lambda q, k, v: linear_attention(q, k, v, feature_map="elu")[0]
    if kind.startswith("lsh-"):
        rotations = random_rotations(int(kind[4:]), size.n_heads, size.head_size, BUCKETS)
        return lambda q, k, v: lsh_attention(q, v, rotations.to(q.device))
    return naive_softmax_attention if "matrix" in kind else softmax_attention


def all_kinds() -> list[str]:
    """List all kinds that run here, including the peer's if it is installed."""
    return [*KINDS, *(f"{peers.NAME}: {kind}" for kind in peers.attentions(1))]


def lengths(size: ScalingSettings) -> list[int]:
    """Return the sequence lengths, each twice the previous one."""
    return [2**e for e in range(size.shortest.bit_length() - 1, size.longest.bit_length())]


def measure(
    kind: str, length: int, size: ScalingSettings, before: Row | None, device: torch.device
) -> Row:
    """Measure one sequence length and return its row.

    The row has ``seconds`` and ``bytes`` of a pass, or the reason in ``stopped`` if this length
    would exceed the time limit or the memory, judged by ``before``, the row of half the length.
    """
    if before:
        if "stopped" in before:
            return {"kind": kind, "length": length, "stopped": before["stopped"]}
        if before["seconds"] > size.max_seconds / 2:
            return {"kind": kind, "length": length, "stopped": f"{size.max_seconds:g} s per pass"}
        if 4 * before["bytes"] > SHARE * _memory(device):
            return {"kind": kind, "length": length, "stopped": "memory"}
    attend = attention(kind, length, size)
    if attend is None:
        raise ValueError(f"{kind} is not installed here")
    shape = (1, length, size.n_heads, size.head_size)
    leaves = [torch.randn(shape, device=device, requires_grad=True) for _ in range(3)]

    def once() -> None:
        o = attend(*leaves)
        torch.autograd.grad(o, leaves, torch.ones_like(o), allow_unused=True)

    peak = peak_bytes(once, device)  # also the warm-up pass
    return {
        "kind": kind,
        "length": length,
        "seconds": timed(once, device, size.repeats),
        "bytes": peak,
    }


def _memory(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory()


def peak_bytes(run: Callable[[], object], device: torch.device) -> int:
    """Return the peak memory that torch allocates during a call, in bytes."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        return torch.cuda.max_memory_allocated(device) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    moves = [event for event in events if event.get("name") == "[memory]"]
    moves.sort(key=lambda event: event["ts"])
    allocated = peak = 0
    for move in moves:
        allocated += move["args"]["Bytes"]
        peak = max(peak, allocated)
    return peak


def slope(rows: list[Row], what: str) -> float | None:
    """Fit the exponent with which ``what`` grows with the length, to the four longest lengths.

    Shorter lengths are dominated by the fixed cost of a call. Returns None for fewer than three.
    """
    points = [(math.log(r["length"]), math.log(r[what])) for r in rows if "stopped" not in r][-4:]
    if len(points) < 3:
        return None
    x, y = (sum(values) / len(points) for values in zip(*points, strict=True))
    power: float = sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)
    return power


class _Figure1(Experiment[ScalingSettings]):
    name = "figure1"
    title = "Figure 1: time and memory by sequence length"
    full = ScalingSettings()
    quick = ScalingSettings(longest=2**13, max_seconds=3.0, repeats=2)

    def rows(
        self, settings: ScalingSettings, report: Report, data_dir: Path | None, device: torch.device
    ) -> Rows:
        def make(kind: str, length: int) -> Row:
            before = report.rows.get(f"{kind} {length // 2}")
            return measure(kind, length, settings, before, device)

        for kind in all_kinds():
            for length in lengths(settings):
                yield f"{kind} {length}", partial(make, kind, length)

    def caption(self, s: Row) -> str:
        return (
            f"One forward and backward pass of causal attention, {s['n_heads']} heads of "
            f"{s['head_size']} features, batch size 1. `softmax` is PyTorch's own kernel, which "
            "stores no T × T matrix; `softmax, whole matrix` stores it, as in the paper. The slope "
            "is the exponent of the length, fitted to the four longest. Memory is the peak of "
            "PyTorch's allocator."
        )

    def table(self, rows: dict[str, Row]) -> str:
        every = sorted({row["length"] for row in rows.values()})

        def part(what: str, scale: float, unit: str) -> str:
            lines = []
            for kind, points in by_kind(rows.values()).items():
                cells = [
                    "–" if "stopped" in row else number(scale * row[what])
                    for row in sorted(points, key=lambda row: row["length"])
                ]
                lines.append([kind, *cells, number(slope(points, what))])
            return markdown_table([unit, *map(str, every), "slope"], lines)

        ends = sorted({row["stopped"] for row in rows.values() if "stopped" in row})
        why = (
            f"\n\n–: not run, because it would need more than {' or '.join(ends)}." if ends else ""
        )
        seconds = part("seconds", 1e3, "ms per pass by length")
        return f"{seconds}\n\n{part('bytes', 1e-6, 'peak MB by length')}{why}"

    def verdicts(self, rows: dict[str, Row]) -> Iterable[Verdict]:
        kinds = by_kind(rows.values())
        for kind, what, least, most in (
            ("linear", "seconds", 0.0, 1.05),
            ("linear", "bytes", 0.0, 1.05),
            *((kind, "seconds", 0.0, 1.2) for kind in kinds if kind.startswith("lsh-")),
            ("softmax", "seconds", 1.8, 9.0),
            ("softmax, whole matrix", "bytes", 1.8, 9.0),
        ):
            power = slope(kinds.get(kind, []), what)
            if power is not None:
                grows = "time" if what == "seconds" else "memory"
                bound = f"slope ≥ {least:g}" if least else f"slope ≤ {most:g}"
                shape = "quadratically" if least else "linearly"
                yield Verdict(
                    f"{grows} of {kind} attention grows {shape} ({bound})", f"{power:.3f}",
                    least <= power <= most,
                )  # fmt: skip

    def plot(self, figure: Figure, rows: dict[str, Row]) -> None:
        left, right = figure.subplots(1, 2)
        _curves(left, rows, "seconds", 1, "seconds per pass")
        _curves(right, rows, "bytes", 1e-6, "peak MB")
        left.legend(fontsize=7)


def _curves(axes: Axes, rows: dict[str, Row], what: str, scale: float, label: str) -> None:
    for kind, points in by_kind(rows.values()).items():
        measured = [row for row in points if "stopped" not in row]
        style = "--" if ":" in kind else "-"
        x, y = [r["length"] for r in measured], [scale * r[what] for r in measured]
        axes.loglog(x, y, style, marker="o", markersize=3, label=kind, base=2)
    axes.set_xlabel("sequence length")
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)


FIGURE1 = _Figure1()
