"""API keys."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from scanline.service.http.errors import ApiError
from scanline.service.http.paths import route_path

PREFIX = "/v1/"  # path below which a key is required


class ApiKeyMiddleware:
    """Refuses requests below ``PREFIX`` that lack an API key, before their body is read.

    The key's name, which reveals nothing of the key, becomes the request's ``caller`` and is
    logged.

    Args:
        app: The application.
        keys: The valid keys.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self.app = app
        self._names = {key.encode(): f"key_{_digest(key.encode())[:8]}" for key in keys}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http" and route_path(scope).startswith(PREFIX):
            # Starlette decodes headers as Latin-1; a key may be any text in UTF-8.
            header = Headers(scope=scope).get("authorization", "").encode("latin-1")
            scheme, _, key = header.partition(b" ")
            key = key.lstrip(b" ")
            # Compare with every key in constant time, so that the time reveals nothing.
            names = [
                name for valid, name in self._names.items() if secrets.compare_digest(valid, key)
            ]
            if not names or scheme.lower() != b"bearer":
                message = "the API key is missing or wrong; send it as 'Authorization: Bearer …'"
                challenge = {"WWW-Authenticate": "Bearer"}
                error = ApiError(401, message, code="invalid_api_key", headers=challenge)
                await error.response(scope, receive, send)
                return
            scope["state"]["key"] = scope["state"]["caller"] = names[0]
        await self.app(scope, receive, send)


def _digest(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()
