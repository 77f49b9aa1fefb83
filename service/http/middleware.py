"""Around every request: its id, log line and count, a bound on its body, HEAD, and bugs as 500s."""

from __future__ import annotations

import logging
import re
import secrets
import time
from urllib.parse import quote

from fastapi.responses import JSONResponse
from prometheus_client import Counter
from pydantic import SecretStr
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scanline.service.http.errors import ApiError, error_body

log = logging.getLogger("scanline.access")

_ID = re.compile(r"[\x21-\x7e]{1,128}")


class AccessMiddleware:
    """Give each reply ``X-Request-ID`` (the caller's, if it sent a plain one), log and count it."""

    def __init__(self, app: ASGIApp, requests: Counter) -> None:
        self.app, self._requests = app, requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        sent = Headers(scope=scope).get("x-request-id", "")
        request_id = sent if _ID.fullmatch(sent) else f"req_{secrets.token_hex(12)}"
        scope.setdefault("state", {})["request_id"] = request_id
        began, status = time.perf_counter(), 499  # 499: the client left before any reply

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-ID"] = request_id
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        finally:
            # The route's pattern, not the path: a label for every id would grow without bound.
            route = getattr(scope.get("route"), "path", "other")
            self._requests.labels(route, status).inc()
            milliseconds = round((time.perf_counter() - began) * 1e3, 1)
            extra = {
                "request_id": request_id, "method": scope["method"], "path": scope["path"],
                "status": status, "milliseconds": milliseconds,
                "client": (scope.get("client") or ("",))[0],
            }  # fmt: skip
            quiet = scope["path"] in ("/livez", "/readyz", "/metrics")
            log.log(
                logging.DEBUG if quiet else logging.INFO,
                "%s %s %s %.1f ms %s", scope["method"], quote(scope["path"]), status, milliseconds,
                request_id, extra=extra,
            )  # fmt: skip


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


class FailureMiddleware:
    """Turn a bug into a 500 of the usual shape, logged with the request's id.

    Next to the routes: a handler of ``Exception`` would run outside all other middleware, and
    its reply have neither id nor CORS headers, nor be counted.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def noticed(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receive, noticed)
        except Exception:
            request_id = scope["state"]["request_id"]
            log.exception("request %s met a bug", request_id, extra={"request_id": request_id})
            if not started:  # else the server cuts the reply off, as it must
                message = "something went wrong inside the server; the log has the request's id"
                body = error_body(500, message, code="internal_error")
                await JSONResponse(body, 500)(scope, receive, send)


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


class BodyLimitMiddleware:
    """Refuse a body over ``limit`` bytes with 413, at once where its length is announced."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self.app, self.limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "")
        too_large = announced.isdecimal() and int(announced) > self.limit
        seen = 0

        async def limited() -> Message:
            nonlocal seen
            if too_large:
                raise self._error()
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.limit:
                raise self._error()
            return message

        await self.app(scope, limited, send)

    def _error(self) -> ApiError:
        return ApiError(
            413,
            f"the body is over {self.limit:,} bytes; send a smaller picture",
            code="too_large",
            headers={"Connection": "close"},
        )
