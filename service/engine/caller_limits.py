"""Limits per caller: images in flight, and pixels per minute."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from itertools import islice
from typing import Protocol

from scanline.service.engine.generation import Clock, Generation
from scanline.service.engine.queue_limits import RefusedError

PERIOD_SECONDS = 60.0


class CallerLimit(Protocol):
    """A limit per caller."""

    def check(self, caller: str, n: int) -> None:
        """Raise ``RefusedError`` if the caller may not submit ``n`` more images now."""

    def track(self, caller: str, generation: Generation) -> None:
        """Count a submitted generation as the caller's."""


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
        """Raise ``RefusedError`` if ``n`` more images would exceed the caller's limit."""
        with self._lock:
            in_flight = sum(one.unfinished for one in self._live.get(caller, ()))
        if self.limit is not None and in_flight + n > self.limit:
            raise RefusedError(
                f"you have {in_flight} images in flight, and the limit is {self.limit}; wait until "
                "some have finished, or cancel them",
                code="too_many_in_flight",
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


class PixelQuota:
    """Pixels that each caller has used, which are paid off at a constant rate.

    A request is accepted as long as its caller has used fewer pixels than one minute pays off. So a
    request of any size is possible, and a caller that exceeds its quota waits until the excess is
    paid off. A pixel counts once per slot: twice with guidance, and once per particle. Pixels
    that are not drawn, because the request is cancelled, are given back.

    Args:
        limit: Pixels per caller and minute, or None for no limit.
        count: Function that is called with a caller and the pixels drawn for it, at the end of each
            generation, if there is a limit.
        clock: Time in seconds.
    """

    def __init__(
        self,
        limit: int | None,
        count: Callable[[str, int], None] = lambda caller, pixels: None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.limit = limit
        self._count, self._clock = count, clock
        self._used: dict[str, tuple[float, float]] = {}  # pixels of each caller, and when
        self._lock = threading.Lock()  # generations finish on their engines' threads

    def check(self, caller: str, n: int) -> None:
        """Raise ``RefusedError`` if the caller has used up its quota, whatever ``n`` is."""
        if self.limit is None:
            return
        with self._lock:
            used = self._now_used(caller)
        if used >= self.limit:
            seconds = math.floor((used - self.limit) * PERIOD_SECONDS / self.limit) + 1
            raise RefusedError(
                f"you have used your quota of {self.limit:,} pixels per minute; try again in "
                f"{seconds} s",
                code="quota_exceeded",
                retry_after=seconds,
            )

    def track(self, caller: str, generation: Generation) -> None:
        """Charge a generation to its caller, and give back at its end what was not drawn."""
        if self.limit is None:
            return
        slots = generation.spec.slots
        pixels = generation.config.pixels - generation.spec.prefix
        charged = generation.spec.n * pixels * slots
        self._add(caller, charged)

        def settle() -> None:
            drawn = generation.drawn_pixels * slots
            self._add(caller, drawn - charged)
            self._count(caller, drawn)

        generation.add_done_callback(settle)

    def _add(self, caller: str, pixels: int) -> None:
        with self._lock:
            used = self._now_used(caller) + pixels
            self._used.pop(caller, None)
            self._used[caller] = (used, self._clock())  # the caller charged longest ago is first
            # Forget callers that owe nothing. Two per call, so that they are forgotten faster than
            # new ones come.
            for other in list(islice(self._used, 2)):
                if self._now_used(other) <= 0:
                    del self._used[other]

    def _now_used(self, caller: str) -> float:
        """Return the pixels that are not paid off yet."""
        used, then = self._used.get(caller, (0.0, 0.0))
        paid = (self._clock() - then) * (self.limit or 0) / PERIOD_SECONDS
        return max(0.0, used - paid)
