"""Progress of long work: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self, TypeAlias

from tqdm import tqdm

LINE_SECONDS = 10.0  # between two lines


class ProgressLines:
    """Progress as one line every ten seconds; work that ends sooner prints nothing."""

    def __init__(
        self, total: float | None, unit: str, desc: str, initial: float, disable: bool
    ) -> None:
        self.n = self._initial = initial
        self._total, self._unit, self._disable = total, unit, disable
        self._start = f"{desc}: " if desc else ""
        self._remark = ""
        self._began = self._printed = time.monotonic()

    def update(self, n: float = 1) -> None:
        """Count ``n`` more units, and print a line if the last one is ten seconds old."""
        self.n += n
        now = time.monotonic()
        if now - self._printed >= LINE_SECONDS and not self._disable:
            self._printed = now
            sys.stderr.write(self._line(now - self._began) + "\n")
            sys.stderr.flush()

    def _line(self, seconds: float) -> str:
        parts = [f"{self._start}{self.n:,} {self._unit}s"]
        if self._total:
            share = self.n / self._total
            parts[0] = f"{self._start}{self.n:,} of {self._total:,} {self._unit}s ({share:.0%})"
            done = self.n - self._initial
            if done > 0:
                left = round(seconds * (self._total - self.n) / done)
                parts.append(f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02} left")
        return ", ".join(filter(None, [*parts, self._remark]))

    def set_postfix_str(self, s: str) -> None:
        """Set the remark after the counts."""
        self._remark = s

    def write(self, s: str) -> None:
        """Print a line to standard output."""
        sys.stdout.write(s + "\n")
        sys.stdout.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


Progress: TypeAlias = "tqdm[Any] | ProgressLines"  # tqdm is generic in its stubs only


def show_progress(
    total: float | None,
    unit: str,
    *,
    desc: str = "",
    initial: float = 0,
    disable: bool = False,
    delay: float = 0,
    leave: bool = True,
) -> Progress:
    """Return a progress display on standard error: a bar if it is a terminal, else lines.

    Args:
        total: Number of units in all, or None if it is unknown.
        unit: Name of a unit, in the singular.
        desc: Name of the work.
        initial: Units that were done before.
        disable: Show nothing.
        delay: Seconds after which a bar appears.
        leave: Keep a bar on the screen at the end.
    """
    if disable or not sys.stderr.isatty():
        return ProgressLines(total, unit, desc, initial, disable)
    return tqdm(
        total=total, unit=unit, desc=desc or None, initial=initial, delay=delay, leave=leave,
        unit_scale=unit == "byte",
    )  # fmt: skip
