"""Headers that keep browsers and caches from guessing and telling."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",  # what is JSON is never run as a script
    "Referrer-Policy": "no-referrer",  # no link tells where it was followed
}


class SecurityHeadersMiddleware:
    """Add ``SECURITY_HEADERS`` to every reply, and that it is not to be kept where that is left
    open.

    A proxy's cache may keep such for as long as it likes, and give yesterday's ``/readyz``.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(SECURITY_HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self.app(scope, receive, send_with_headers if scope["type"] == "http" else send)
