"""Tests of stop requests by signals."""

from __future__ import annotations

import os
import signal

import pytest

from scanline.model.training.stop_signal import StopSignal


def test_first_signal_requests_stop_and_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with StopSignal().handling_signals() as stop:
        assert not stop.requested
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested
        for second in (signal.SIGINT, signal.SIGTERM):  # kills the process
            assert signal.getsignal(second) == signal.SIG_DFL
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_handler_replaced_by_others_is_kept() -> None:
    with StopSignal().handling_signals():
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


@pytest.mark.usefixtures("default_sighup")
def test_repeated_sighup_requests_stop_once() -> None:
    with StopSignal().handling_signals() as stop:
        for _ in range(2):
            signal.raise_signal(signal.SIGHUP)
        assert stop.requested
        assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL


@pytest.mark.usefixtures("default_sighup")
def test_sighup_stays_ignored_under_nohup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopSignal().handling_signals() as stop:
        signal.raise_signal(signal.SIGHUP)
        assert not stop.requested


@pytest.mark.parametrize("error", [BrokenPipeError, RuntimeError])
def test_failing_notification_does_not_cancel_stop(error: type[Exception]) -> None:
    """The output is closed, or the signal interrupted a write to it."""

    def gone(message: str) -> None:
        raise error

    with StopSignal(gone).handling_signals() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.requested


def test_stop_request_is_confirmed() -> None:
    messages: list[str] = []
    with StopSignal(messages.append).handling_signals() as stop:
        signal.raise_signal(signal.SIGTERM)
    assert stop.requested
    assert "press Ctrl-C again to quit without saving" in messages[0]
