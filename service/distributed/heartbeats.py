"""Which replicas of a model there are, and how they are."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import threading
from collections.abc import Callable, Iterable

from scanline.service.distributed.messages import ReplicaClient, ReplicaReport
from scanline.service.engine.generation import Clock

log = logging.getLogger("scanline.cluster")

HEARTBEAT_SECONDS = 1.0  # between two reports
HEARTBEAT_TIMEOUT = 5.0  # that a replica has to report
LOST_SECONDS = 5.0  # without a report, where asking fails: then there is no replica any more
SILENT_SECONDS = 60.0  # that one counts which says nothing: Ray ends it sooner


class HeartbeatMonitor:
    """Has all replicas of a model report from time to time; of one event loop.

    ``reports`` are the last ones, by replica, and ``met`` is set once there were any. While one
    says nothing, all that have reported count: it holds what it was given, and the others draw.
    ``wanted`` counts the slots that images wait for, which each is told its share of, and ``heard``
    is called after each meeting with the seconds since the one before.
    """

    def __init__(
        self,
        name: str,
        replicas: ReplicaClient,
        wanted: Callable[[], int],
        heard: Callable[[float], None],
        clock: Clock,
    ) -> None:
        self.reports: dict[str, ReplicaReport] = {}
        self.ready = threading.Event()
        self._name, self._replicas, self._clock = name, replicas, clock
        self._wanted, self._heard = wanted, heard
        self._frontend = secrets.token_hex(8)
        self._next = asyncio.Event()  # set once all have met again
        self._reported = self._complete = clock()

    async def run(self) -> None:
        """Meet again and again, until cancelled."""
        while True:
            try:
                share = self._wanted() / max(1, len(self.reports))
                reports, failures = await self._replicas.heartbeat(
                    self._frontend, share, HEARTBEAT_TIMEOUT
                )
            except (Exception, asyncio.CancelledError) as error:  # one is dying, or there is none
                if is_cancelled(error):
                    raise
                self._miss(error)
            else:
                self._take(reports, failures)
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def wait_for_next(self) -> None:
        """Wait until all report again; where some still draw, no longer than one may hang."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._next.wait(), LOST_SECONDS)
                return
            if self.reports:
                return

    def _miss(self, error: BaseException) -> None:
        log.debug("%s: no reports: %r", self._name, error)
        if self._clock() - self._reported > LOST_SECONDS:
            self._set({}, repr(error))

    def _take(self, reports: list[ReplicaReport], failures: list[Exception]) -> None:
        silent = any(isinstance(failure, TimeoutError) for failure in failures)
        if not reports and not silent:
            self._miss(failures[0])
            return
        now = self._clock()
        if not silent:
            self._complete = now
        counted = self.reports if silent and now - self._complete < SILENT_SECONDS else {}
        self._set(counted | {report.replica: report for report in reports}, "all are silent")
        if not reports:
            return
        seconds, self._reported = now - self._reported, now
        self._heard(seconds)
        self.ready.set()
        if not failures:
            self._next.set()
            self._next = asyncio.Event()

    def _set(self, reports: dict[str, ReplicaReport], why: str) -> None:
        if self.reports and not reports:
            log.warning("%s: nothing draws it now, no replica reports: %s", self._name, why)
        if reports and not self.reports and self.ready.is_set():
            log.info("%s: replicas report again", self._name)
        self._check_variants(reports.values())
        self.reports = reports

    def _check_variants(self, reports: Iterable[ReplicaReport]) -> None:
        variants = {report.variant for report in reports}
        if len(variants) > 1 and variants != {one.variant for one in self.reports.values()}:
            log.warning(
                "%s: replicas are of several kinds, on which the same seed gives other bytes: %s",
                self._name, "; ".join(sorted(variants)),
            )  # fmt: skip


def is_cancelled(error: BaseException) -> bool:
    """Whether this task is told to end, and not only what it waited for."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
