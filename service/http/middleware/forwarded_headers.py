"""Headers of trusted proxies that name the client's address and scheme."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

_SCHEME_HEADER = b"x-forwarded-proto"


class ForwardedHeadersMiddleware:
    """uvicorn's middleware for trusted proxies, with any common form of ``X-Forwarded-Proto``.

    uvicorn ignores a scheme in capitals. It also ignores a list, to which each of several proxies
    has added its scheme: the first is the client's.

    Args:
        app: The application.
        trusted: Addresses and networks of the trusted proxies; "*" trusts all.
    """

    def __init__(self, app: ASGIApp, trusted: list[str]) -> None:
        self._app = ProxyHeadersMiddleware(app, trusted_hosts=trusted)  # type: ignore[arg-type]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http":
            schemes = [value for name, value in scope["headers"] if name == _SCHEME_HEADER]
            if schemes:
                first = schemes[0].split(b",")[0].strip().lower()
                others = [header for header in scope["headers"] if header[0] != _SCHEME_HEADER]
                scope["headers"] = [*others, (_SCHEME_HEADER, first)]
        await self._app(scope, receive, send)  # type: ignore[arg-type]
