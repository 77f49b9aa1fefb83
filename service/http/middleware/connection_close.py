"""A server that shuts down lets its connections go."""

from __future__ import annotations

from collections.abc import Callable

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class ConnectionCloseMiddleware:
    """End the connection behind each reply while the server is ``closing``.

    A client that keeps it would send its next request, and each retry, to where none is taken.
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
