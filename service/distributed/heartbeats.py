"""Heartbeats of a model's replicas."""

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

HEARTBEAT_SECONDS = 1.0  # interval of the heartbeats
HEARTBEAT_TIMEOUT = 5.0  # seconds in which a replica must report
LOST_SECONDS = 5.0  # time without a successful heartbeat after which all replicas count as lost
SILENT_SECONDS = 60.0  # maximum silence of one replica; Ray restarts it sooner


class HeartbeatMonitor:
    """Asks all replicas for a report once a second. Used by one event loop.

    While one replica is silent, every replica that has reported still counts: the silent one keeps
    its work items, and the others draw.

    Args:
        name: Name of the model, for logs.
        replicas: Client of the replicas.
        waiting_slots: Function that returns the number of slots that waiting images need. Each
            replica is told its share, for autoscaling.
        on_reports: Called after each heartbeat with the seconds since the previous one.
        clock: Source of all times.

    Attributes:
        reports: Last report of each live replica, by the replica's name.
        ready: Event that is set once a replica has reported.
    """

    def __init__(
        self,
        name: str,
        replicas: ReplicaClient,
        waiting_slots: Callable[[], int],
        on_reports: Callable[[float], None],
        clock: Clock,
    ) -> None:
        self.reports: dict[str, ReplicaReport] = {}
        self.ready = threading.Event()
        self._name, self._replicas, self._clock = name, replicas, clock
        self._waiting_slots, self._on_reports = waiting_slots, on_reports
        self._frontend = secrets.token_hex(8)
        self._next = asyncio.Event()  # set once all replicas have reported again
        self._last_report = self._last_without_silence = clock()

    @property
    def reproducibility(self) -> str | None:
        """``reproducibility`` of all replicas that count; None if there are none."""
        return next((report.reproducibility for report in self.reports.values()), None)

    async def run(self) -> None:
        """Send heartbeats until cancelled."""
        while True:
            try:
                share = self._waiting_slots() / max(1, len(self.reports))
                reports, failures = await self._replicas.heartbeat(
                    self._frontend, share, self.reproducibility
                )
            except (Exception, asyncio.CancelledError) as error:  # a replica dies, or there is none
                if is_cancelled(error):
                    raise
                self._record_failure(error)
            else:
                self._record(reports, failures)
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def wait_for_next(self) -> None:
        """Wait until all replicas report again, or ``LOST_SECONDS`` if one draws."""
        while True:
            with contextlib.suppress(TimeoutError):
                # Not wait_for, which loses a cancellation in Python 3.11 if it succeeds meanwhile.
                async with asyncio.timeout(LOST_SECONDS):
                    await self._next.wait()
                return
            if self.reports:
                return

    def _record_failure(self, error: BaseException) -> None:
        log.debug("%s: no reports: %r", self._name, error)
        if self._clock() - self._last_report > LOST_SECONDS:
            self._set_reports({}, repr(error))

    def _record(self, reports: list[ReplicaReport], failures: list[Exception]) -> None:
        reports, refused = self._refuse_others(reports)
        failures = [*failures, *refused]
        silent = any(isinstance(failure, TimeoutError) for failure in failures)
        if not reports and not silent:
            self._record_failure(failures[0])
            return
        now = self._clock()
        if not silent:
            self._last_without_silence = now
        keep = silent and now - self._last_without_silence < SILENT_SECONDS
        earlier = self.reports if keep else {}
        self._set_reports(earlier | {one.replica: one for one in reports}, "all are silent")
        if not reports:
            return
        seconds, self._last_report = now - self._last_report, now
        self._on_reports(seconds)
        self.ready.set()
        if not failures:
            self._next.set()
            self._next = asyncio.Event()

    def _set_reports(self, reports: dict[str, ReplicaReport], reason: str) -> None:
        if self.reports and not reports:
            log.warning("%s: no replica reports, so nothing is drawn: %s", self._name, reason)
        if reports and not self.reports and self.ready.is_set():
            log.info("%s: replicas report again", self._name)
        self._check_variants(reports.values())
        self.reports = reports

    def _refuse_others(
        self, reports: list[ReplicaReport]
    ) -> tuple[list[ReplicaReport], list[Exception]]:
        """Return the reports of replicas that draw the same bytes, and errors for the others."""
        expected = self.reproducibility
        if expected is None and reports:
            # The newest arithmetic, so that all frontends choose the same.
            newest = max(reports, key=lambda one: (one.arithmetic or 0, one.reproducibility))
            expected = newest.reproducibility
        refused: list[Exception] = []
        for one in reports:
            if one.reproducibility != expected:
                log.error(
                    "%s: the replica %s is refused, because it draws other bytes for the same "
                    "seed: with %s instead of %s",
                    self._name, one.replica, one.variant, expected,
                )  # fmt: skip
                refused.append(RuntimeError(f"{one.replica} is refused"))
        return [one for one in reports if one.reproducibility == expected], refused

    def _check_variants(self, reports: Iterable[ReplicaReport]) -> None:
        variants = {report.variant for report in reports}
        if len(variants) > 1 and variants != {one.variant for one in self.reports.values()}:
            log.warning(
                "%s: the replicas are of different variants, so the same seed may give different "
                "bytes: %s",
                self._name, "; ".join(sorted(variants)),
            )  # fmt: skip


def is_cancelled(error: BaseException) -> bool:
    """Return True if the current task itself is cancelled, not only what it awaited."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
