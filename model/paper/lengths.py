"""Figure 1: time and memory of one forward and backward pass of attention, by the length."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from scanline.kernels.attention.linear import linear_attention
from scanline.kernels.attention.lsh import lsh_attention, random_turns
from scanline.kernels.attention.softmax import naive_softmax_attention, softmax_attention
from scanline.model.decoders.room import SHARE, free_memory
from scanline.model.layers.lsh import BUCKETS
from scanline.model.paper import peers
from scanline.model.paper.report import Row, timed


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """One sequence of so many heads; a kind ends at the first length that takes too long."""

    shortest: int = 2**9
    longest: int = 2**16
    n_heads: int = 8
    head_size: int = 32
    most_seconds: float = 60.0
    repeats: int = 5


FULL = Lengths()
QUICK = Lengths(longest=2**13, most_seconds=3.0, repeats=2)

KINDS = ("linear", "softmax", "softmax, whole matrix", "lsh-1", "lsh-4")


def attention(kind: str, length: int, size: Lengths) -> peers.Attend | None:
    """Give causal attention of a kind as a function of q, k and v; None where it is not there.

    A kind of the peer's is ``fast-transformers: kind``.
    """
    if kind.startswith(peers.NAME):
        return peers.attentions(length).get(kind.removeprefix(f"{peers.NAME}: "))
    if kind == "linear":
        return lambda q, k, v: linear_attention(q, k, v, feature_map="elu")[0]
    if kind.startswith("lsh-"):
        turns = random_turns(int(kind[4:]), size.n_heads, size.head_size, BUCKETS)
        return lambda q, k, v: lsh_attention(q, v, turns.to(q.device))
    return naive_softmax_attention if "matrix" in kind else softmax_attention


def all_kinds() -> list[str]:
    """Name every kind that runs here, the peer's among them."""
    return [*KINDS, *(f"{peers.NAME}: {kind}" for kind in peers.attentions(1))]


def lengths(size: Lengths) -> list[int]:
    """Give the lengths, each twice the one before."""
    return [2**e for e in range(size.shortest.bit_length() - 1, size.longest.bit_length())]


def measure(kind: str, length: int, size: Lengths, before: Row | None, device: torch.device) -> Row:
    """Measure one length: ``seconds`` and ``bytes`` of a pass, or why the kind ends (``stopped``).

    ``before`` is the row of half this length, from which it is known what this one may take.
    """
    if before:
        if "stopped" in before:
            return {"kind": kind, "length": length, "stopped": before["stopped"]}
        if before["seconds"] > size.most_seconds / 2:
            return {"kind": kind, "length": length, "stopped": f"{size.most_seconds:g} s a pass"}
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

    taken = peak_bytes(once, device)  # the first pass, which is not timed
    return {
        "kind": kind,
        "length": length,
        "seconds": timed(once, device, size.repeats),
        "bytes": taken,
    }


def _memory(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory()


def peak_bytes(run: Callable[[], object], device: torch.device) -> int:
    """Give the most bytes that torch held at any time in a call beyond what it held before."""
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
    held = most = 0
    for move in moves:
        held += move["args"]["Bytes"]
        most = max(most, held)
    return most


def slope(rows: list[Row], what: str) -> float | None:
    """Fit the power of the length with which ``what`` grows, to the four longest lengths measured.

    Shorter ones tell of the calls' fixed cost. None for fewer than three.
    """
    points = [(math.log(r["length"]), math.log(r[what])) for r in rows if "stopped" not in r][-4:]
    if len(points) < 3:
        return None
    x, y = (sum(values) / len(points) for values in zip(*points, strict=True))
    power: float = sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)
    return power
