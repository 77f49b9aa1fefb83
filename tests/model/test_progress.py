"""Tests of the progress display."""

from __future__ import annotations

import io
import sys

import pytest

from scanline.model import progress
from scanline.model.progress import show_progress


class Clock:
    """Time that passes only when it is told to."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_one_line_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    with show_progress(600, "step", initial=100) as bar:
        for step in range(100, 600):
            clock.now += 1 / 16
            bar.set_postfix_str(f"{step} bits/dim")
            bar.update()
        bar.write("step 600: validated")
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [
        "260 of 600 steps (43%), 0:00:21 left, 259 bits/dim",
        "420 of 600 steps (70%), 0:00:11 left, 419 bits/dim",
        "580 of 600 steps (97%), 0:00:01 left, 579 bits/dim",
    ]
    assert captured.out == "step 600: validated\n"


def test_unknown_totals_and_disabled_displays(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    for disable in (False, True):
        with show_progress(None, "byte", desc="file", disable=disable) as bar:
            clock.now += 11
            bar.update(5000)
    assert capsys.readouterr().err == "file: 5,000 bytes\n"


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with show_progress(3, "step") as bar:
        bar.update(3)
    assert "\r" in terminal.getvalue()
    assert "3/3" in terminal.getvalue()
