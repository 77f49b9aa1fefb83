"""Forms that other sites' pages have a browser send."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from scanline.service.http.errors import ApiError


class CSRFMiddleware:
    """Refuse forms of pages of other origins than these, and this server's own.

    A browser asks first whether such a page may send JSON, but a form it just sends: whatever page
    one looks at could have a server on one's own machine, which wants no key, draw for it. Browsers
    say themselves whose page it is (to HTTPS and to their own machine), and nobody else does: what
    proxies make of `Host` does not matter.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        self.app, self._origins = app, origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http" and scope["method"] == "POST":
            headers = Headers(scope=scope)
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            foreign = headers.get("sec-fetch-site") in ("cross-site", "same-site")
            if foreign and kind != "application/json" and not self._may(headers):
                message = (
                    "pages of other origins may not send this; SCANLINE_CORS_ORIGINS says who may"
                )
                refusal = ApiError(403, message, code="cors_refused")
                await refusal.response(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _may(self, headers: Headers) -> bool:
        return "*" in self._origins or headers.get("origin") in self._origins
