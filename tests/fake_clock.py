"""Fake clocks for engines and event loops."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Clock:
    """Engine clock that returns ``now``, which the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class _Skipping(selectors.SelectSelector):
    """Selector that never waits: if nothing is ready, it advances the time by the timeout."""

    passed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(timeout and 0)
        if timeout and not ready:
            self.passed += timeout
        return ready


class _SkippingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.passed


def run_skipping(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in an event loop whose sleeps take no real time."""
    with asyncio.Runner(loop_factory=_SkippingLoop) as runner:
        return runner.run(main)
