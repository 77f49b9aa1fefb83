"""Every request gets an id, a log line and a count."""

from __future__ import annotations

import logging
import re
import secrets
import time
from urllib.parse import quote

from prometheus_client import Counter
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
