"""A wish to stop, from the keyboard or the system, that long work heeds when it can."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType


class Stop:
    """Turns the first Ctrl-C or SIGTERM into a wish to stop after the step; the next kills.

    ``say`` is told of the wish, for its fulfilment may take minutes.
    """

    def __init__(self, say: Callable[[str], object] = lambda words: None) -> None:
        self.asked = False
        self._say = say

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)
        self._say("\nstopping after what is being done now; once more ends it here, unsaved\n")

    @contextlib.contextmanager
    def listening(self) -> Iterator[Stop]:
        """Listen for the signals inside the block, and put the old handlers back after it."""
        before = {s: signal.signal(s, self._ask) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
