"""Markdown formatting of numbers and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scanline.model.paper.report import Row


def markdown_table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Format a table; the first column is left-aligned, the others right-aligned."""
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *lines))


def number(value: float | None) -> str:
    """Format a number with three significant digits, and None as a dash."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def network(s: Row) -> str:
    """Describe the size of a network from an experiment's settings."""
    return f"{s['n_layers']} layers × {s['d_model']}, {s['n_heads']} heads"


def duration(seconds: float) -> str:
    """Format a duration in the largest unit that makes it at least 1."""
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} seconds"
