"""Stop request by Ctrl-C or a system signal, honoured after the current step."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # SIGHUP: the terminal closed


class StopSignal:
    """Stop request, set by the first SIGINT (Ctrl-C), SIGTERM or SIGHUP.

    The next SIGINT or SIGTERM kills the process. Further SIGHUPs are ignored, because closing a
    terminal may send several.

    Args:
        notify: Receives a message for the user when a stop is requested, because the current work
            may take minutes to finish.
    """

    def __init__(self, notify: Callable[[str], object] = lambda message: None) -> None:
        self.requested = False
        self._notify = notify

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        for each in STOP_SIGNALS:
            if signal.getsignal(each) == self._handle:
                signal.signal(each, signal.SIG_IGN if each == signal.SIGHUP else signal.SIG_DFL)
        # The output may be closed, or the signal may have interrupted a write to the same stream.
        with contextlib.suppress(OSError, RuntimeError):
            self._notify(
                "\nstopping after the current step; press Ctrl-C again to quit without saving\n"
            )

    @contextlib.contextmanager
    def handling_signals(self) -> Iterator[StopSignal]:
        """Handle the signals inside the block, and restore the previous handlers after it.

        SIGHUP stays ignored if it already is, as under ``nohup``.
        """
        handled = [
            s for s in STOP_SIGNALS if s != signal.SIGHUP or signal.getsignal(s) != signal.SIG_IGN
        ]
        previous = {s: signal.signal(s, self._handle) for s in handled}
        try:
            yield self
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
