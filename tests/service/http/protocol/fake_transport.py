"""Connections without sockets: a fake asyncio transport and server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn
from prometheus_client import Counter
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from scanline.service.http.protocol.connection import BoundedHttpProtocol
from scanline.service.http.protocol.connection_limiter import ConnectionLimiter, ConnectionLimits

LIMITS = ConnectionLimits(header_seconds=1, body_seconds=1, send_seconds=1)
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class FakeTransport(asyncio.Transport):
    """Transport that records sent bytes, unread bytes and whether it was aborted."""

    def __init__(self, address: str = "") -> None:
        super().__init__({"peername": (address, 1)} if address else None)
        self.sent, self.unread, self.aborted = b"", 0, False

    def write(self, data: Any) -> None:
        self.sent += bytes(data)

    def get_write_buffer_size(self) -> int:
        return self.unread

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def write_eof(self) -> None: ...

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.aborted = True


class FakeServer:
    """Server without sockets."""

    def __init__(self, app: App, limits: ConnectionLimits = LIMITS) -> None:
        self.closed = Counter("closed", "Closed.", ["reason"], registry=None)
        replies = Counter("replies", "Replies.", ["route", "method", "status"], registry=None)
        refusals = Counter("refusals", "Refusals.", ["code"], registry=None)
        self.limiter = ConnectionLimiter(limits, self.closed, replies, refusals)
        self._config = uvicorn.Config(app, log_config=None, ws="none", lifespan="off")
        self._state = ServerState()

    def connect(self, address: str = "") -> tuple[BoundedHttpProtocol, FakeTransport]:
        """Connect another client."""
        loop, transport = asyncio.get_running_loop(), FakeTransport(address)
        connection = BoundedHttpProtocol(self._config, self._state, {}, loop, limiter=self.limiter)
        connection.connection_made(transport)
        return connection, transport

    def closed_count(self, reason: str) -> float:
        return float(self.closed.labels(reason)._value.get())


async def reply_at_once(scope: Scope, receive: Receive, send: Send) -> None:
    """Reply at once, without reading the body."""
    headers = [(b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body"})


async def reply_late(scope: Scope, receive: Receive, send: Send) -> None:
    """Reply after 100 s."""
    await asyncio.sleep(100)
    await reply_at_once(scope, receive, send)
