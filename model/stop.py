"""A wish to stop, from the keyboard or the system, that long work heeds when it can."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class Stop:
    """Turns the first Ctrl-C or SIGTERM into a wish to stop after the step; the next kills."""

    def __init__(self) -> None:
        self.asked = False

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)

    @contextlib.contextmanager
    def listening(self) -> Iterator[Stop]:
        """Listen for the signals inside the block, and put the old handlers back after it."""
        before = {s: signal.signal(s, self._ask) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
