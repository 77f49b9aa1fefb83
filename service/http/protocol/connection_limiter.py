"""Limits on all connections together, and the policy that enforces them."""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import dataclass

import prometheus_client
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

log = logging.getLogger("scanline.connections")

MAX_LINGERING = 32  # refused connections kept open to read their error, on top of the limit
MAX_UNSENT_BYTES = 2**28  # maximum unread bytes of replies, over all connections
LOG_INTERVAL_SECONDS = 10.0  # minimum time between two warnings about too many connections
_CONSEQUENCES = {
    "full": "a new one is refused",
    "crowded": "the longest idle is closed",
    "share": "one of the client that has the most is closed",
}


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """Limits of connections: ``header_bytes`` and timeouts of each, and ``connections`` in all.

    ``header_bytes`` bounds a request's first line and headers. ``header_seconds`` and
    ``body_seconds`` bound the time in which a client must send them and the body; ``send_seconds``
    the time in which it must read a part of a reply.
    """

    header_bytes: int = 32_768
    header_seconds: float = 10.0
    body_seconds: float = 60.0
    send_seconds: float = 30.0
    connections: int = 2000


class ConnectionLimiter:
    """Registry of open connections that enforces the limits on all of them together.

    Args:
        limits: The limits.
        closed: Counter of connections closed by the server, by reason.
        requests: Counter of replies, by route, method and status.
        errors: Counter of error replies, by code.
    """

    def __init__(
        self,
        limits: ConnectionLimits,
        closed: prometheus_client.Counter,
        requests: prometheus_client.Counter,
        errors: prometheus_client.Counter,
    ) -> None:
        self.limits = limits
        # Connections without a complete request, the longest idle first.
        self.idle: dict[HttpToolsProtocol, None] = {}
        # Bytes that each client has not read yet; the client that is behind for longest first.
        self.unsent: dict[HttpToolsProtocol, int] = {}
        # Client address (or network) of each admitted connection, the newest last.
        self._clients: dict[HttpToolsProtocol, str] = {}
        self._lingering: set[HttpToolsProtocol] = set()  # refused, but still reading their error
        self._total_unsent = 0
        self._closed, self._requests, self._errors = closed, requests, errors
        self._logged_at = -LOG_INTERVAL_SECONDS

    def admit(self, connection: HttpToolsProtocol, client: str) -> bool:
        """Register a new connection, and close another one if the limit is exceeded.

        The longest idle connection is closed first. If all have a request, the newest connection of
        the client with the most connections is closed, provided that this client would still have
        at least as many as ``client``.

        Args:
            connection: The new connection.
            client: Address or network of its client.

        Returns:
            False if no connection could be closed, and the new one must be refused.
        """
        if self.admitted >= self.limits.connections and not self._make_room(client):
            return False
        self._clients[connection] = client
        self.idle[connection] = None
        return True

    @property
    def admitted(self) -> int:
        """Number of open connections that were admitted."""
        return len(self._clients)

    def mark_idle(self, connection: HttpToolsProtocol) -> None:
        """Record that an admitted connection has no request, so that it can make room."""
        if connection in self._clients:
            self.idle[connection] = None

    def allow_lingering(self, connection: HttpToolsProtocol) -> bool:
        """Keep a refused connection open for a moment, so that the client can read its error.

        Returns:
            False if ``MAX_LINGERING`` connections already do so.
        """
        if len(self._lingering) >= MAX_LINGERING:
            return False
        self._lingering.add(connection)
        return True

    def release(self, connection: HttpToolsProtocol) -> None:
        """Remove a connection from the registry."""
        self._lingering.discard(connection)
        self.idle.pop(connection, None)
        self._clients.pop(connection, None)

    def _make_room(self, client: str) -> bool:
        if self.idle:
            reason, victim = "crowded", next(iter(self.idle))
        else:
            counts = Counter(self._clients.values())
            largest = max(counts, key=counts.__getitem__, default=client)
            if counts[largest] <= counts[client] + 1:
                self.count_closed("full")
                return False
            newest_first = reversed(self._clients)
            reason, victim = "share", next(c for c in newest_first if self._clients[c] == largest)
        self.release(victim)
        self.count_closed(reason)
        victim.transport.abort()
        return True

    def count_rejection(self, status: int, code: str) -> None:
        """Count an error reply that was sent before any route was chosen."""
        self._requests.labels("other", "other", status).inc()
        self._errors.labels(code).inc()

    def record_unsent(self, connection: HttpToolsProtocol, unsent: int) -> None:
        """Record how many bytes a client has not read yet, and enforce the limit on their sum.

        While the sum exceeds ``MAX_UNSENT_BYTES``, the connection that has been behind for longest
        is aborted.
        """
        self._total_unsent += unsent - self.unsent.get(connection, 0)
        self.unsent[connection] = unsent
        if not unsent:
            del self.unsent[connection]
        while self._total_unsent > MAX_UNSENT_BYTES:
            longest = next(iter(self.unsent))
            self._total_unsent -= self.unsent.pop(longest)
            self.count_closed("unread")
            longest.transport.abort()

    def count_closed(self, reason: str) -> None:
        """Count a connection closed by the server; log a warning if there are too many."""
        self._closed.labels(reason).inc()
        now = time.monotonic()
        if reason in _CONSEQUENCES and now - self._logged_at >= LOG_INTERVAL_SECONDS:
            self._logged_at = now
            log.warning(
                "all %d connections are taken: %s; raise SCANLINE_MAX_CONNECTIONS and the limit "
                "on open files if these clients are legitimate",
                self.limits.connections,
                _CONSEQUENCES[reason],
            )
