"""A wish to stop: the first signal is one, a second kills, but for a terminal's end."""

from __future__ import annotations

import os
import signal

import pytest

from scanline.model.training.stop_signal import StopSignal


def test_the_first_signal_asks_and_the_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with StopSignal().handling_signals() as stop:
        assert not stop.requested
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested
        for second in (signal.SIGINT, signal.SIGTERM):  # it kills
            assert signal.getsignal(second) == signal.SIG_DFL
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_handler_that_is_another_s_by_then_is_left_to_it() -> None:
    with StopSignal().handling_signals():
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


@pytest.mark.usefixtures("hangups")
def test_a_closed_terminal_asks_however_often_it_says_so() -> None:
    with StopSignal().handling_signals() as stop:
        for _ in range(2):
            signal.raise_signal(signal.SIGHUP)
        assert stop.requested
        assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL


@pytest.mark.usefixtures("hangups")
def test_what_was_begun_with_nohup_does_not_heed_a_terminal_s_end() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopSignal().handling_signals() as stop:
        signal.raise_signal(signal.SIGHUP)
        assert not stop.requested


@pytest.mark.parametrize("error", [BrokenPipeError, RuntimeError])
def test_a_wish_that_cannot_be_confirmed_is_one(error: type[Exception]) -> None:
    """Whoever read it has ended, or the signal came amid a write to the same stream."""

    def gone(words: str) -> None:
        raise error

    with StopSignal(gone).handling_signals() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.requested
