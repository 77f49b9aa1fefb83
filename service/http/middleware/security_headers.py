"""Security headers of every reply."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",  # JSON never runs as a script
    "Referrer-Policy": "no-referrer",  # links do not reveal where they were followed
}


class SecurityHeadersMiddleware:
    """Adds ``SECURITY_HEADERS``, and ``Cache-Control: no-store`` if a reply has no other.

    Without ``Cache-Control`` a proxy may cache a reply for as long as it likes, and answer
    ``/readyz`` with an old one.
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
