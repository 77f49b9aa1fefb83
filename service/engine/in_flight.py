"""Limit on the images that a caller may have in flight."""

from __future__ import annotations

import threading

from scanline.service.engine.generation import Generation


class TooManyInFlightError(Exception):
    """The caller has reached its limit of images in flight; the message states both numbers."""


class InFlightLimiter:
    """Count of unfinished images per caller.

    Args:
        limit: Unfinished images that a caller may have, or None for no limit.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self._live: dict[str, set[Generation]] = {}
        self._lock = threading.Lock()  # generations finish on their engines' threads

    def check(self, caller: str, n: int) -> None:
        """Raise ``TooManyInFlightError`` if ``n`` more images would exceed the caller's limit."""
        with self._lock:
            in_flight = sum(one.unfinished for one in self._live.get(caller, ()))
        if self.limit is not None and in_flight + n > self.limit:
            raise TooManyInFlightError(
                f"you have {in_flight} images in flight, and the limit is {self.limit}; wait until "
                "some have finished, or cancel them"
            )

    def track(self, caller: str, generation: Generation) -> None:
        """Count a generation's images as the caller's until it finishes."""
        if self.limit is None:
            return

        def forget() -> None:
            with self._lock:
                live = self._live[caller]
                live.discard(generation)
                if not live:
                    del self._live[caller]

        with self._lock:
            self._live.setdefault(caller, set()).add(generation)
        generation.add_done_callback(forget)
