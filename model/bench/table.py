"""Report of a benchmark: the table of timings, and the comparison with the peer below it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from scanline.model.bench.peer import Peer
from scanline.model.bench.timing import Timing

LineCallback = Callable[[str], object]  # receives each line as it is measured


@dataclass(frozen=True)
class Report:
    """All timings of a run, with the hardware, its peak rates, and remarks."""

    hardware: dict[str, Any]
    peaks: dict[str, float]
    timings: list[Timing]
    notes: list[str]


HEADER = (
    f"{'model':14} {'backend':25} {'slots':>5} {'pixels':>6} {'ms/step':>9} {'s/image':>9} "
    f"{'images/s':>9} {'GFLOP/s':>8} {'MB/step':>8} {'GB/s':>6} {'share':>5}  of the bound"
)


def format_row(t: Timing) -> str:
    """Format a timing as a line below ``HEADER``."""
    limit = f"{t.limit_ratio:6.2f} × {t.limit}" if t.limit_ratio else ""
    share = "" if t.bandwidth_share is None else f"{t.bandwidth_share:.0%}"
    backend = f"{t.backend} {t.precision}"
    return (
        f"{t.model:14} {backend:25} {t.slots:5} {t.pixels:6} {t.milliseconds_per_step:9.4f} "
        f"{t.seconds_per_image:9.3g} {t.images_per_second:9.2f} {t.gflops:8.1f} "
        f"{t.mbytes_per_step:8.1f} {t.gbytes_per_second:6.1f} {share:>5} {limit}"
    )


def peer_ratios(timings: Sequence[Timing]) -> list[str]:
    """Compare ``native`` with the peer: latency with one slot, and best throughput."""
    lines = []
    for name in dict.fromkeys(t.model for t in timings):
        ours = [t for t in timings if (t.model, t.backend) == (name, "native")]
        theirs = [t for t in timings if (t.model, t.backend) == (name, Peer.backend)]
        if not ours or not theirs:
            continue
        best = max(t.images_per_second for t in ours) / max(t.images_per_second for t in theirs)
        lines.append(f"{name}: the throughput of native is {best:.1f} times the peer's")
        single = [[t.seconds_per_image for t in side if t.slots == 1] for side in (ours, theirs)]
        if all(single):
            ratio = single[1][0] / single[0][0]
            lines.append(
                f"{name}: the latency of native is {ratio:.1f} times shorter than the peer's"
            )
    return lines
