"""Closing of connections during a shutdown."""

from __future__ import annotations

from collections.abc import Callable

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class ConnectionCloseMiddleware:
    """Adds ``Connection: close`` to every reply while the server shuts down.

    Otherwise a client with a connection pool would send its next request, and every retry, to a
    server that refuses them.

    Args:
        app: The application.
        closing: Function that returns whether the server shuts down.
    """

    def __init__(self, app: ASGIApp, closing: Callable[[], bool]) -> None:
        self.app, self._closing = app, closing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_and_close(message: Message) -> None:
            if message["type"] == "http.response.start" and self._closing():
                MutableHeaders(scope=message)["Connection"] = "close"
            await send(message)

        await self.app(scope, receive, send_and_close)
