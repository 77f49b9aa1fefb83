"""Which replicas of a model there are, and how they are."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import threading
from collections.abc import Callable

from scanline.service.cluster.parts import Replicas, Report
from scanline.service.generation import Clock

log = logging.getLogger("scanline.cluster")

MEETING_SECONDS = 1.0  # between two reports
LOST_SECONDS = 5.0  # without a report, where asking fails: then there is no replica any more
SILENT_SECONDS = 60.0  # where nobody answers: one is silent, which Ray sees sooner than that


class Meetings:
    """Has all replicas of a model report from time to time; of one event loop.

    ``reports`` are the last ones, by replica, and ``met`` is set once there were any. ``wanted``
    counts the slots that images wait for, which each is told its share of, and ``heard`` is called
    after each meeting with the seconds since the one before.
    """

    def __init__(
        self,
        name: str,
        replicas: Replicas,
        wanted: Callable[[], int],
        heard: Callable[[float], None],
        clock: Clock,
    ) -> None:
        self.reports: dict[str, Report] = {}
        self.met = threading.Event()
        self._name, self._replicas, self._clock = name, replicas, clock
        self._wanted, self._heard = wanted, heard
        self._entrance = secrets.token_hex(8)
        self._next = asyncio.Event()  # set once they have met again
        self._reported = clock()

    async def hold(self) -> None:
        """Meet again and again, until cancelled."""
        while True:
            try:
                share = self._wanted() / max(1, len(self.reports))
                meeting = self._replicas.meet(self._entrance, share)
                reports = await asyncio.wait_for(meeting, LOST_SECONDS)
            except (Exception, asyncio.CancelledError) as error:  # one is dying, or there is none
                if ending(error):
                    raise
                self._miss(error)
            else:
                self._take(reports)
            await asyncio.sleep(MEETING_SECONDS)

    async def again(self) -> None:
        """Wait until all report again; where some still draw, no longer than one may hang."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._next.wait(), LOST_SECONDS)
                return
            if self.reports:
                return

    def _miss(self, error: BaseException) -> None:
        log.debug("%s: no reports: %r", self._name, error)
        # Where one alone does not answer, the others draw.
        most = SILENT_SECONDS if isinstance(error, TimeoutError) else LOST_SECONDS
        if self.reports and self._clock() - self._reported > most:
            log.warning("%s: nothing draws it now, no replica reports: %r", self._name, error)
            self.reports = {}

    def _take(self, reports: list[Report]) -> None:
        if reports and not self.reports and self.met.is_set():
            log.info("%s: replicas report again", self._name)
        self._check_variants(reports)
        self.reports = {report.replica: report for report in reports}
        now = self._clock()
        seconds, self._reported = now - self._reported, now
        self._heard(seconds)
        self.met.set()
        self._next.set()
        self._next = asyncio.Event()

    def _check_variants(self, reports: list[Report]) -> None:
        variants = {report.variant for report in reports}
        if len(variants) > 1 and variants != {one.variant for one in self.reports.values()}:
            log.warning(
                "%s: replicas are of several kinds, on which the same seed gives other bytes: %s",
                self._name, "; ".join(sorted(variants)),
            )  # fmt: skip


def ending(error: BaseException) -> bool:
    """Whether this task is told to end, and not only what it waited for."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
