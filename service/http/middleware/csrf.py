"""Protection against forms that pages of other sites submit."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from scanline.service.http.bodies import media_type
from scanline.service.http.errors import ApiError


class CSRFMiddleware:
    """Refuses forms from pages of origins other than the server's own and the allowed ones.

    Browsers send a preflight request before JSON from another origin, but not before a form. So
    any page could make a server on the visitor's own machine, which needs no key, draw for it.
    Browsers name the page's relation to the server in ``Sec-Fetch-Site`` (for HTTPS and for
    localhost), and no other client sends this header. Unlike ``Host``, proxies do not change it.

    Args:
        app: The application.
        origins: The allowed origins; "*" allows all.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        self.app, self._origins = app, origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http" and scope["method"] == "POST":
            headers = Headers(scope=scope)
            is_json = media_type(headers) == "application/json"
            foreign = headers.get("sec-fetch-site") in ("cross-site", "same-site")
            if foreign and not is_json and not self._is_allowed(headers):
                message = (
                    "pages of other origins may not send this; SCANLINE_CORS_ORIGINS lists the "
                    "allowed ones"
                )
                error = ApiError(403, message, code="cors_refused")
                await error.response(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _is_allowed(self, headers: Headers) -> bool:
        return "*" in self._origins or headers.get("origin") in self._origins
