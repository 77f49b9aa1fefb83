"""Who calls, and how many images each has in flight: nobody more than a share."""

from __future__ import annotations

import threading

from scanline.service.engine.generation import Generation


class TooManyInFlightError(Exception):
    """A caller has as many images in flight as it may; the message says how many."""


class InFlightLimiter:
    """The generations of each caller that are not finished; ``most`` images each, or any number."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self._live: dict[str, set[Generation]] = {}
        self._changing = threading.Lock()  # generations end on their engines' threads

    def check(self, caller: str, n: int) -> None:
        """Raise ``TooManyInFlightError`` if so many images more would be too many."""
        with self._changing:
            has = sum(one.unfinished for one in self._live.get(caller, ()))
        if self.limit is not None and has + n > self.limit:
            raise TooManyInFlightError(
                f"you have {has} images in flight, and may have {self.limit}: wait for some, or "
                "cancel them"
            )

    def track(self, caller: str, generation: Generation) -> None:
        """Count a generation as its caller's until it ends."""

        def forget() -> None:
            with self._changing:
                live = self._live[caller]
                live.discard(generation)
                if not live:
                    del self._live[caller]

        if self.limit is not None:
            with self._changing:
                self._live.setdefault(caller, set()).add(generation)
            generation.add_done_callback(forget)
