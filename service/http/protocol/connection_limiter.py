"""Who may be connected: how many clients, who makes room for others, and what is said of it."""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import dataclass

import prometheus_client
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

log = logging.getLogger("scanline.connections")

MAX_LINGERING = 32  # connections of those who were refused, beside those that may be there
MAX_UNSENT_BYTES = 2**28  # of replies that clients have yet to read, all together
LOG_INTERVAL_SECONDS = 10.0  # between two log lines of connections turned away
_CROWDED = {
    "full": "a new one is refused",
    "crowded": "the longest idle is closed",
    "share": "one of the client that has the most is closed",
}


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """What a connection may take: bytes of a head, seconds of each part, and how many there are."""

    header_bytes: int = 32_768
    header_seconds: float = 10.0
    body_seconds: float = 60.0
    send_seconds: float = 30.0
    connections: int = 2000


class ConnectionLimiter:
    """Who is in, whose requests are yet to come, and what is said of those who are turned away.

    ``turned_away`` counts connections by reason, ``requests`` replies by route, method and status,
    and ``refused`` refusals by the error's code.
    """

    def __init__(
        self,
        bounds: ConnectionLimits,
        turned_away: prometheus_client.Counter,
        requests: prometheus_client.Counter,
        refused: prometheus_client.Counter,
    ) -> None:
        self.bounds = bounds
        # Those whose request is not whole yet, for the longest first.
        self.idle: dict[HttpToolsProtocol, None] = {}
        # How many bytes each has yet to read, who is behind for the longest first.
        self.unsent: dict[HttpToolsProtocol, int] = {}
        self._whose: dict[HttpToolsProtocol, str] = {}  # of all that were taken, the newest last
        self._heard_out: set[HttpToolsProtocol] = set()  # refused and still read, to see why
        self._unsent = 0
        self._turned_away, self._requests, self._refused = turned_away, requests, refused
        self._said = -LOG_INTERVAL_SECONDS

    def admit(self, connection: HttpToolsProtocol, whose: str, there: int) -> bool:
        """Take a connection, with which so many are ``there``; False if none makes room for it.

        One without a request makes room, who owes it the longest; where all have one, the newest
        of the client that has the most, if that is more than the newcomer has with this one.
        """
        there -= len(self._heard_out)
        if there > self.bounds.connections and not self._make_room(whose):
            return False
        self._whose[connection] = whose
        self.idle[connection] = None
        return True

    @property
    def admitted(self) -> int:
        """Count the connections that were taken and are still there."""
        return len(self._whose)

    def mark_idle(self, connection: HttpToolsProtocol) -> None:
        """Note that a connection has no request, if it was taken: another's place is none."""
        if connection in self._whose:
            self.idle[connection] = None

    def allow_lingering(self, connection: HttpToolsProtocol) -> bool:
        """Let one that was not taken send on for a moment, where few do: it then reads why."""
        if len(self._heard_out) >= MAX_LINGERING:
            return False
        self._heard_out.add(connection)
        return True

    def release(self, connection: HttpToolsProtocol) -> None:
        """Forget a connection, if it was taken."""
        self._heard_out.discard(connection)
        self.idle.pop(connection, None)
        self._whose.pop(connection, None)

    def _make_room(self, whose: str) -> bool:
        if self.idle:
            reason, one = "crowded", next(iter(self.idle))
        else:
            counts = Counter(self._whose.values())
            most = max(counts, key=counts.__getitem__, default=whose)
            if counts[most] <= counts[whose] + 1:
                self.count_closed("full")
                return False
            newest = (one for one in reversed(self._whose) if self._whose[one] == most)
            reason, one = "share", next(newest)
        self.release(one)
        self.count_closed(reason)
        one.transport.abort()
        return True

    def count_rejection(self, status: int, code: str) -> None:
        """Count a refusal that no route gave."""
        self._requests.labels("other", "other", status).inc()
        self._refused.labels(code).inc()

    def record_unsent(self, connection: HttpToolsProtocol, unsent: int) -> None:
        """Note what a client has yet to read; of too much in all, the longest behind go."""
        self._unsent += unsent - self.unsent.get(connection, 0)
        self.unsent[connection] = unsent
        if not unsent:
            del self.unsent[connection]
        while self._unsent > MAX_UNSENT_BYTES:
            longest = next(iter(self.unsent))
            self._unsent -= self.unsent.pop(longest)
            self.count_closed("unread")
            longest.transport.abort()

    def count_closed(self, reason: str) -> None:
        """Count a connection ended by the server, and log that there are too many, now and then."""
        self._turned_away.labels(reason).inc()
        now = time.monotonic()
        if reason in _CROWDED and now - self._said >= LOG_INTERVAL_SECONDS:
            self._said = now
            log.warning(
                "all %d connections are taken: %s; raise SCANLINE_MAX_CONNECTIONS and the limit "
                "on open files if these are honest clients",
                self.bounds.connections,
                _CROWDED[reason],
            )
