"""Measured quantities with their spread, which decide the paper's claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
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
        low: Lower end of its spread: of a 95 % confidence interval over the test data, or the
            quantity of the extreme timings.
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


def largest_spread(rows: Iterable[Row]) -> str:
    """Format the largest spread of a row's timings ``seconds``, as a share of their median."""
    timings = [row["seconds"] for row in rows]
    spreads = [(max(one) - min(one)) / median(one) for one in timings]
    return f"{100 * max(spreads):.0f} %" if spreads else "–"


def timing_ratio(first: list[float], second: list[float]) -> Quantity:
    """Return the ratio of two medians; its spread is that of the extreme timings."""
    return Quantity(
        median(first) / median(second), min(first) / max(second), max(first) / min(second)
    )
