"""HEAD answered as GET."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class HeadMiddleware:
    """Answer HEAD as GET, which FastAPI does not; the server leaves the body out."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return
        # A copy, and so the server itself still knows that no body is wanted.
        as_get = {**scope, "method": "GET"}
        try:
            await self.app(as_get, receive, send)
        finally:
            scope["route"] = as_get.get("route")  # for the log
