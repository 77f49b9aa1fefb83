"""Figure 1: time and memory of a forward and backward pass of attention by sequence length."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import linear_regression
from typing import TYPE_CHECKING

import torch
from torch.profiler import ProfilerActivity, profile

from scanline.kernels.attention.chunked import torch_linear_attention
from scanline.kernels.attention.features import elu_feature_map
from scanline.kernels.attention.lsh import lsh_attention, random_rotations
from scanline.kernels.attention.softmax import naive_softmax_attention, softmax_attention
from scanline.kernels.ops.attention import packed_implementation, packed_linear_attention
from scanline.model.decoders.memory import SHARE, free_memory
from scanline.model.layers.lsh import BUCKETS
from scanline.model.paper import peers
from scanline.model.paper.experiment import Experiment, Rows, UnitRun
from scanline.model.paper.kinds import LSH_COMBINE
from scanline.model.paper.markdown import markdown_table, number
from scanline.model.paper.quantity import largest_spread, middle
from scanline.model.paper.report import Row, by_kind, timings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class ScalingSettings:
    """Settings; a kind of attention stops at the first length that takes too long.

    Attributes:
        shortest: First sequence length.
        longest: Last sequence length.
        n_heads: Number of heads.
        head_size: Features per head.
        tokens: Positions per pass: the batch size falls as the length grows, down to 1.
        max_seconds: Longest time of a pass.
        repeats: Number of timings.
    """

    shortest: int = 2**9
    longest: int = 2**16
    n_heads: int = 8
    head_size: int = 32
    tokens: int = 2**13
    max_seconds: float = 60.0
    repeats: int = 9

    def batch(self, length: int) -> int:
        """Return the batch size of a length."""
        return max(1, self.tokens // length)


HEAP = 2.0  # memory of a process on the CPU ÷ the peak of PyTorch's allocator: fragmentation

PLAIN_CHUNK = 64  # positions per chunk of linear attention in plain PyTorch
KINDS = ("linear", "linear-pytorch", "softmax", "softmax-matrix", "lsh-1", "lsh-4", "lsh-8")
# The kinds in plain PyTorch, which can be compared because no kernel favours one of them.
PLAIN = tuple(kind for kind in KINDS if kind not in ("linear", "softmax"))


def attention(kind: str, length: int, size: ScalingSettings) -> peers.Attend:
    """Return causal attention of a kind as a function of q, k and v.

    Kinds of the peer are named ``fast-transformers-KIND``.
    """
    if kind.startswith(peers.NAME):
        return peers.attentions(length)[kind.removeprefix(f"{peers.NAME}-")]
    if kind == "linear":
        return lambda q, k, v: packed_linear_attention(torch.stack((q, k, v), 2), None, "elu")
    if kind == "linear-pytorch":
        return lambda q, k, v: torch_linear_attention(
            elu_feature_map(q), elu_feature_map(k), v, chunk=PLAIN_CHUNK
        )[0]
    if kind.startswith("lsh-"):
        rotations = random_rotations(int(kind[4:]), size.n_heads, size.head_size, BUCKETS)
        return lambda q, k, v: lsh_attention(q, v, rotations.to(q.device), combine=LSH_COMBINE)
    return naive_softmax_attention if kind == "softmax-matrix" else softmax_attention


def implementation(kind: str, q: torch.Tensor) -> str:
    """Return the language of a kind's attention on these queries."""
    if kind.startswith(peers.NAME):
        return "the authors' C++" if kind.endswith("linear") else "the authors' PyTorch"
    if kind == "linear" and (kernels := packed_implementation(q, "elu")) != "PyTorch":
        return kernels
    return "PyTorch's fused kernel" if kind == "softmax" else "plain PyTorch"


def lengths(size: ScalingSettings) -> list[int]:
    """Return the sequence lengths, each twice the previous one."""
    return [2**e for e in range(size.shortest.bit_length() - 1, size.longest.bit_length())]


def measure(
    kind: str, length: int, size: ScalingSettings, earlier: list[Row], device: torch.device
) -> Row:
    """Measure one sequence length and return its row.

    The row has the timings ``seconds`` and the peak ``bytes`` of a pass, both per sample, or the
    reason in ``stopped`` if this length would exceed the time limit or the memory, judged by the
    rows of the ``earlier`` lengths, each twice the one before it.
    """
    facts: Row = {"kind": kind, "length": length, "batch": size.batch(length)}
    if earlier and "stopped" in earlier[-1]:
        return facts | {"stopped": earlier[-1]["stopped"]}
    if facts["batch"] * _predicted(earlier, "seconds") > size.max_seconds:
        return facts | {"stopped": f"{size.max_seconds:g} s per pass"}
    overhead = 1.0 if device.type == "cuda" else HEAP
    if overhead * facts["batch"] * _predicted(earlier, "bytes") > SHARE * _memory(device):
        return facts | {"stopped": "memory"}
    attend = attention(kind, length, size)
    shape = (facts["batch"], length, size.n_heads, size.head_size)
    leaves = [torch.randn(shape, device=device, requires_grad=True) for _ in range(3)]

    def once() -> None:
        o = attend(*leaves)
        torch.autograd.grad(o, leaves, torch.ones_like(o), allow_unused=True)

    try:
        peak = peak_bytes(once, device)  # also the warm-up pass
        seconds = timings(once, device, size.repeats)
    except torch.OutOfMemoryError:  # of a GPU, if a pass needs more than predicted
        return facts | {"stopped": "memory"}
    return facts | {
        "implementation": implementation(kind, leaves[0]),
        "seconds": [one / facts["batch"] for one in seconds],
        "bytes": peak / facts["batch"],
    }


def _predicted(earlier: list[Row], what: str) -> float:
    """Predict time or memory per sample at twice the last length, from its latest growth."""
    values = [middle(row[what]) for row in earlier[-2:]]
    if not values:
        return 0.0
    return values[-1] * (values[-1] / values[0] if len(values) == 2 else 2.0)


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
    measured = [row for row in rows if "stopped" not in row][-4:]
    if len(measured) < 3:
        return None
    x = [math.log(row["length"]) for row in measured]
    y = [math.log(middle(row[what])) for row in measured]
    return linear_regression(x, y).slope


class _Figure1(Experiment[ScalingSettings]):
    name = "figure1"
    title = "Figure 1: time and memory by sequence length"
    inches = (10, 8)

    def units(self, settings: ScalingSettings) -> list[str]:
        return [*KINDS, *(f"{peers.NAME}-{kind}" for kind in peers.KINDS)]

    def missing(self, unit: str) -> str | None:
        return peers.missing() if unit.startswith(peers.NAME) else None

    def rows(self, run: UnitRun[ScalingSettings]) -> Rows:
        def make(length: int) -> Row:
            shorter = [f"{run.unit} {n}" for n in lengths(run.settings) if n < length]
            earlier = [run.report.rows[key] for key in shorter if key in run.report.rows]
            return measure(run.unit, length, run.settings, earlier, run.device)

        for length in lengths(run.settings):
            yield f"{run.unit} {length}", partial(make, length)

    def caption(self, s: Row) -> str:
        return (
            "Time and memory of one forward and backward pass of causal attention, per sample: "
            f"{s['n_heads']} heads of {s['head_size']} features, and a batch size of "
            f"{s['tokens']:,} divided by the length, at least 1. `softmax` is PyTorch's own "
            "kernel, which stores no T × T matrix; `softmax-matrix` stores it, as in the paper. "
            "The upper panels have all kinds in plain PyTorch; the lower ones have the fastest "
            "implementation of each, and with dashed lines the authors' code, whose LSH stores a "
            f"T × T mask. Times are medians of {s['repeats']} timings, with the largest spread as "
            "a share of the median. The slope is the exponent of the length, fitted to the four "
            "longest. Memory is the peak of PyTorch's allocator."
        )

    def table(self, rows: dict[str, Row]) -> str:
        every = sorted({row["length"] for row in rows.values()})

        def part(what: str, scale: float, unit: str) -> str:
            lines = []
            for kind, points in by_kind(rows.values()).items():
                at = {row["length"]: row for row in points if "stopped" not in row}
                cells = [
                    number(scale * middle(at[length][what])) if length in at else "–"
                    for length in every
                ]
                how = next((row["implementation"] for row in at.values()), "–")
                spread = [largest_spread(at.values())] if what == "seconds" else []
                lines.append([f"{kind} ({how})", *cells, *spread, number(slope(points, what))])
            spread = ["largest spread"] if what == "seconds" else []
            return markdown_table([unit, *map(str, every), *spread, "slope"], lines)

        ends = sorted({row["stopped"] for row in rows.values() if "stopped" in row})
        limits = ["the free memory" if end == "memory" else end for end in ends]
        why = f"\n\n–: not run; it would need more than {' or '.join(limits)}." if ends else ""
        seconds = part("seconds", 1e3, "ms per sample by length")
        return f"{seconds}\n\n{part('bytes', 1e-6, 'peak MB per sample by length')}{why}"

    def plot(self, figure: Figure, rows: dict[str, Row]) -> None:
        panels = figure.subplots(2, 2)
        plain = {key: row for key, row in rows.items() if row["kind"] in PLAIN}
        others = {
            key: row
            for key, row in rows.items()
            if row["kind"] not in ("linear-pytorch", "softmax-matrix")
        }
        for (left, right), shown, title in zip(
            panels, (plain, others), ("plain PyTorch", "fastest implementation"), strict=True
        ):
            _curves(left, shown, "seconds", 1, f"seconds per sample, {title}")
            _curves(right, shown, "bytes", 1e-6, f"peak MB per sample, {title}")
            if shown:
                right.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))


def _curves(axes: Axes, rows: dict[str, Row], what: str, scale: float, label: str) -> None:
    for kind, points in by_kind(rows.values()).items():
        measured = [row for row in points if "stopped" not in row]
        style = "--" if kind.startswith(peers.NAME) else "-"
        x = [row["length"] for row in measured]
        y = [scale * middle(row[what]) for row in measured]
        axes.loglog(x, y, style, marker="o", markersize=3, label=kind, base=2)
    axes.set_xlabel("sequence length")
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)


FIGURE1 = _Figure1(
    {
        "quick": ScalingSettings(longest=2**11, max_seconds=2.0, tokens=2**10, repeats=3),
        "default": ScalingSettings(),
        "full": ScalingSettings(tokens=2**16),
    }
)
