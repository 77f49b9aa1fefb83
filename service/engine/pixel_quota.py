"""Quota of pixels per caller and minute."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from itertools import islice

from scanline.service.engine.generation import Clock, Generation
from scanline.service.engine.queue_limits import RefusedError

PERIOD_SECONDS = 60.0


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

    def check(self, caller: str) -> None:
        """Raise ``RefusedError`` if the caller has used up its quota."""
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
        slots = generation.spec.slots_per_image
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
