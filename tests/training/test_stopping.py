"""A wish to stop: the first signal is one, a second of either kind kills."""

from __future__ import annotations

import os
import signal

from scanline.model.training.stop import Stop


def test_the_first_signal_asks_and_the_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Stop().listening() as stop:
        assert not stop.asked
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.asked
        for second in (signal.SIGINT, signal.SIGTERM):  # it kills
            assert signal.getsignal(second) == signal.SIG_DFL
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
