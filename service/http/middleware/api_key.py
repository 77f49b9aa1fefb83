"""The API keys."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from scanline.service.http.errors import ApiError
from scanline.service.http.paths import route_path


class ApiKeyMiddleware:
    """Refuse callers of `/v1` without one of the API keys, before their body is read.

    Whose it is stands in the request's state and its log line, by a name that tells nothing of the
    key itself.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self.app = app
        self._keys = {key.encode(): f"key_{_digest(key.encode())[:8]}" for key in keys}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http" and route_path(scope).startswith("/v1/"):
            # Headers are bytes, decoded as Latin-1 by Starlette; a key may be any text, in UTF-8.
            sent = Headers(scope=scope).get("authorization", "").encode("latin-1")
            scheme, _, key = sent.partition(b" ")
            key = key.lstrip(b" ")
            # Each is compared, so that the time says nothing of any.
            names = [name for one, name in self._keys.items() if secrets.compare_digest(one, key)]
            if not names or scheme.lower() != b"bearer":
                message = "the API key is missing or wrong; send it as 'Authorization: Bearer …'"
                how = {"WWW-Authenticate": "Bearer"}
                refusal = ApiError(401, message, code="invalid_api_key", headers=how)
                await refusal.response(scope, receive, send)
                return
            scope["state"]["key"] = scope["state"]["caller"] = names[0]
        await self.app(scope, receive, send)


def _digest(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()
