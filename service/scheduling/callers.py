"""Who calls, and how many images each has in flight: nobody more than a share."""

from __future__ import annotations

import threading

from scanline.service.generation import Generation


class TooManyError(Exception):
    """A caller has as many images in flight as it may; the message says how many."""


class Callers:
    """The generations of each caller that are not finished; ``most`` images each, or any number."""

    def __init__(self, most: int | None) -> None:
        self.most = most
        self._live: dict[str, set[Generation]] = {}
        self._changing = threading.Lock()  # generations end on their engines' threads

    def check(self, caller: str, n: int) -> None:
        """Raise ``TooManyError`` if so many images more would be too many."""
        with self._changing:
            has = sum(one.unfinished for one in self._live.get(caller, ()))
        if self.most is not None and has + n > self.most:
            raise TooManyError(
                f"you have {has} images in flight, and may have {self.most}: wait for some, or "
                "cancel them"
            )

    def count(self, caller: str, generation: Generation) -> None:
        """Count a generation as its caller's until it ends."""

        def forget() -> None:
            with self._changing:
                live = self._live[caller]
                live.discard(generation)
                if not live:
                    del self._live[caller]

        if self.most is not None:
            with self._changing:
                self._live.setdefault(caller, set()).add(generation)
            generation.when_finished(forget)
