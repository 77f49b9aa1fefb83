"""The API key."""

from __future__ import annotations

import secrets

from fastapi.responses import JSONResponse
from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from scanline.service.http.errors import error_body


class KeyMiddleware:
    """Refuse callers of `/v1` without the API key, before their body is read."""

    def __init__(self, app: ASGIApp, key: SecretStr) -> None:
        self.app, self._expected = app, b"Bearer " + key.get_secret_value().encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http" and scope["path"].startswith("/v1/"):
            # Headers are bytes, decoded as Latin-1 by Starlette; a key may be any text, in UTF-8.
            sent = Headers(scope=scope).get("authorization", "").encode("latin-1")
            scheme, _, key = sent.partition(b" ")
            if not secrets.compare_digest(scheme.title() + b" " + key, self._expected):
                message = "the API key is missing or wrong; send it as 'Authorization: Bearer …'"
                body = error_body(401, message, code="invalid_api_key")
                refusal = JSONResponse(body, 401, headers={"WWW-Authenticate": "Bearer"})
                await refusal(scope, receive, send)
                return
        await self.app(scope, receive, send)
