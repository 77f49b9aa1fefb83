"""Numbers and tables as Markdown has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scanline.model.paper.report import Row


def markdown_table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Give a table whose first column names its lines."""
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *lines))


def number(value: float | None) -> str:
    """Give three figures of a number, a dash for none."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def network(s: Row) -> str:
    """Name the sizes of a network that settings give."""
    return f"{s['n_layers']} layers × {s['d_model']}, {s['n_heads']} heads"
