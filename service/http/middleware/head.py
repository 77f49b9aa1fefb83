"""HEAD requests."""

from __future__ import annotations

import contextlib

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class _HeadersSentError(Exception):
    """The headers of a HEAD request's reply have been sent."""


class HeadMiddleware:
    """Answers HEAD like GET, which FastAPI does not; uvicorn leaves the body out.

    A stream ends before its first event, because it would keep the connection open and count as a
    reader of its generation.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return
        # A copy, because uvicorn must still see HEAD to leave the body out.
        as_get = {**scope, "method": "GET"}

        async def send_headers(message: Message) -> None:
            await send(message)
            media_type = Headers(raw=message.get("headers", [])).get("content-type", "")
            if media_type.startswith("text/event-stream"):
                await send({"type": "http.response.body"})
                raise _HeadersSentError

        try:
            with contextlib.suppress(_HeadersSentError):
                await self.app(as_get, receive, send_headers)
        finally:
            scope["route"] = as_get.get("route")  # for the access log
