"""A wish to stop, from the keyboard or the system, that long work heeds when it can."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

HANG_UP = getattr(signal, "SIGHUP", None)  # the terminal's end; Windows has none
STOP_SIGNALS = tuple(number for number in (signal.SIGINT, signal.SIGTERM, HANG_UP) if number)


class StopSignal:
    """Turns the first Ctrl-C, SIGTERM or SIGHUP into a wish to stop after the step.

    The next Ctrl-C or SIGTERM kills; a terminal that closes may send more than one SIGHUP.
    ``say`` is told of the wish, for its fulfilment may take minutes.
    """

    def __init__(self, say: Callable[[str], object] = lambda words: None) -> None:
        self.requested = False
        self._say = say

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        for each in STOP_SIGNALS:
            if signal.getsignal(each) == self._ask:
                signal.signal(each, signal.SIG_IGN if each == HANG_UP else signal.SIG_DFL)
        # Nobody may read it any more, or the signal came amid a write to the same stream.
        with contextlib.suppress(OSError, RuntimeError):
            self._say("\nstopping after what is being done now; once more ends it here, unsaved\n")

    @contextlib.contextmanager
    def handling_signals(self) -> Iterator[StopSignal]:
        """Listen for the signals inside the block, and put the old handlers back after it.

        SIGHUP stays ignored where it is, as ``nohup`` has it.
        """
        heeded = [s for s in STOP_SIGNALS if s != HANG_UP or signal.getsignal(s) != signal.SIG_IGN]
        before = {s: signal.signal(s, self._ask) for s in heeded}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
