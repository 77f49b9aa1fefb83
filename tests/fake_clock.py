"""Time that stands still until a test moves it, for an engine and for an event loop."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Clock:
    """An engine's clock: every call gives ``now``, which is the test's to move."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class _Skipping(selectors.SelectSelector):
    """Never waits for a timeout: where nothing is ready, that much time has passed."""

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
    """Run a coroutine in a loop whose time passes only, and at once, while all in it sleep."""
    with asyncio.Runner(loop_factory=_SkippingLoop) as runner:
        return runner.run(main)
