"""HEAD answered as GET."""

from __future__ import annotations

import contextlib

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class _ToldError(Exception):
    """All that HEAD asks for has been sent."""


class HeadMiddleware:
    """Answer HEAD as GET, which FastAPI does not; the server leaves the body out.

    A stream is ended before its first event: it would hold the connection, and count as a reader.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return
        # A copy, and so the server itself still knows that no body is wanted.
        as_get = {**scope, "method": "GET"}

        async def send_head(message: Message) -> None:
            await send(message)
            kind = Headers(raw=message.get("headers", [])).get("content-type", "")
            if kind.startswith("text/event-stream"):
                await send({"type": "http.response.body"})
                raise _ToldError

        try:
            with contextlib.suppress(_ToldError):
                await self.app(as_get, receive, send_head)
        finally:
            scope["route"] = as_get.get("route")  # for the log
