"""Measured quantities with their spread, which decide the paper's claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import comb
from statistics import median

from scanline.model.paper.markdown import number
from scanline.model.paper.report import Row

AllRows = Mapping[str, Row]


class NotMeasuredError(Exception):
    """The rows do not contain a quantity; the message is the reason."""


@dataclass(frozen=True)
class Quantity:
    """A measured quantity.

    Attributes:
        value: The quantity.
        low: Lower end of its spread: of a 95 % confidence interval over the test data, or computed
            from the ends of the timings' ``median_interval``.
        high: Upper end.
        details: What it was computed from.
    """

    value: float
    low: float
    high: float
    details: str = ""

    def text(self) -> str:
        """Format the value, its spread and the details."""
        spread = f" ({number(self.low)} to {number(self.high)})" if self.low != self.high else ""
        return f"{number(self.value)}{spread}" + (f": {self.details}" if self.details else "")


Measure = Callable[[AllRows], Quantity]


def extreme(
    choose: Callable[[Iterable[float]], float], quantities: Iterable[Quantity], details: str
) -> Quantity:
    """Return the smallest or largest of several quantities.

    Each end of its spread is the smallest or largest of theirs, because a quantity with a wider
    spread than the extreme one may exceed it.

    Args:
        choose: ``min`` or ``max``.
        quantities: The quantities.
        details: What they were computed from.
    """
    every = [*quantities]
    ends = ([one.value for one in every], [one.low for one in every], [one.high for one in every])
    value, low, high = map(choose, ends)
    return Quantity(value, low, high, details)


def check_same_machine(rows: Iterable[Row]) -> None:
    """Raise ``NotMeasuredError`` if rows were timed on different machines or PyTorch versions."""
    first, *others = rows
    for other in others:
        if other["machine"] != first["machine"]:
            names = (row.get("kind") or row["method"] for row in (first, other))
            raise NotMeasuredError(
                f"{' and '.join(names)} were timed on different machines or PyTorch versions"
            )


def middle(value: float | list[float]) -> float:
    """Return the median of several timings, or a single value."""
    return median(value) if isinstance(value, list) else value


def median_interval(timings: list[float]) -> tuple[float, float]:
    """Return a confidence interval of the median of independent timings.

    Its ends are the k-th smallest and the k-th largest timing. Each lies on the wrong side of the
    true median with the probability that fewer than k of n coin tosses are heads. k is the largest
    rank that gives 95 % confidence, and 1 for fewer than nine timings.
    """
    n, ordered = len(timings), sorted(timings)
    rank, tail = 1, 1 + n  # tail: 2^n × P(at most `rank` heads)
    while 2 * tail <= 0.05 * 2**n:
        rank += 1
        tail += comb(n, rank)
    return ordered[rank - 1], ordered[-rank]


def largest_spread(rows: Iterable[Row]) -> str:
    """Format the widest ``median_interval`` of the rows' timings, as a share of their median."""
    spreads = []
    for row in rows:
        low, high = median_interval(row["seconds"])
        spreads.append((high - low) / median(row["seconds"]))
    return f"{100 * max(spreads):.0f} %" if spreads else "–"


def timing_ratio(first: list[float], second: list[float]) -> Quantity:
    """Return the ratio of two medians; its spread combines the ends of their intervals."""
    (low, high), (second_low, second_high) = median_interval(first), median_interval(second)
    return Quantity(median(first) / median(second), low / second_high, high / second_low)
