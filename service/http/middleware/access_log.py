"""Request ids, the access log and the request metrics."""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from collections.abc import Collection
from urllib.parse import quote

from prometheus_client import Counter, Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scanline.service.http.addresses import client_address, client_network
from scanline.service.http.paths import route_path

log = logging.getLogger("scanline.access")

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_ID = re.compile(r"[\x21-\x7e]{1,128}")


class AccessLogMiddleware:
    """Adds ``X-Request-ID`` to every reply, logs the request and counts it.

    The id is the client's own if it sent a valid one. The request's state gets ``request_id``,
    ``key`` (the name of the API key, if any) and ``caller``, which is the client's network until
    ``ApiKeyMiddleware`` replaces it by the key's name. A route may set ``log_fields`` to a function
    that returns more fields of the log line.

    Args:
        app: The application.
        requests: Counter of replies, by route, method and status.
        seconds: Histogram of times, by route and method.
        errors: Counter of error replies, by code.
        quiet_paths: Paths that are logged at level DEBUG, and whose errors ``not_ready`` are not
            counted.
    """

    def __init__(
        self,
        app: ASGIApp,
        requests: Counter,
        seconds: Histogram,
        errors: Counter,
        quiet_paths: Collection[str] = (),
    ) -> None:
        self.app = app
        self._requests, self._seconds, self._errors = requests, seconds, errors
        self._quiet_paths = quiet_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        client_id = Headers(scope=scope).get("x-request-id", "")
        request_id = client_id if _ID.fullmatch(client_id) else f"req_{secrets.token_hex(12)}"
        client = client_address((scope.get("client") or ("",))[0])
        state = scope.setdefault("state", {})
        state |= {"request_id": request_id, "key": "", "caller": client_network(client)}
        began, status = time.perf_counter(), 499  # 499: the client left before the reply began
        error: dict[str, str] = {}

        async def send_with_id(message: Message) -> None:
            nonlocal status, error
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-ID"] = request_id
            elif status >= 400 and (parsed := _parse_error(message.get("body", b""))):
                error = parsed
                # Otherwise each probe of a starting server would count as an error.
                if error["code"] != "not_ready" or route_path(scope) not in self._quiet_paths:
                    self._errors.labels(error["code"]).inc()
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        finally:
            seconds = time.perf_counter() - began
            self._count(scope, status, seconds)
            self._log(scope, status, seconds, client, error)

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        # The route's pattern instead of the path, because every path would add a time series. For
        # the same reason methods that the route does not have are "other".
        route = getattr(scope.get("route"), "path", "other")
        method = scope["method"] if scope["method"] in _METHODS and status != 405 else "other"
        self._requests.labels(route, method, status).inc()
        self._seconds.labels(route, method).observe(seconds)

    def _log(
        self, scope: Scope, status: int, seconds: float, client: str, error: dict[str, str]
    ) -> None:
        milliseconds, state = round(seconds * 1e3, 1), scope["state"]
        extra = {
            "request_id": state["request_id"], "method": scope["method"], "path": scope["path"],
            "status": status, "milliseconds": milliseconds, "client": client, **error,
        }  # fmt: skip
        if state["key"]:
            extra["key"] = state["key"]
        details = "".join(f" {quote(value)}" for value in error.values())
        # Removed from the state, because uvicorn keeps the last request of a connection alive.
        if (log_fields := state.pop("log_fields", None)) is not None:
            fields = log_fields()
            extra |= fields
            details += "".join(
                f" {value}" if isinstance(value, str) else f" {name}={value}"
                for name, value in fields.items()
            )
        log.log(
            logging.DEBUG if route_path(scope) in self._quiet_paths else logging.INFO,
            "%s %s %s %.1f ms %s %s%s", scope["method"], quote(scope["path"]), status, milliseconds,
            client or "-", state["request_id"], details, extra=extra,
        )  # fmt: skip


def _parse_error(body: bytes) -> dict[str, str]:
    """Return the code and the field of an error reply, or nothing if it is none."""
    try:
        error = json.loads(body)["error"]
        fields = {"code": error["code"], "param": error.get("param")}
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}
    texts = {name: value for name, value in fields.items() if isinstance(value, str)}
    return texts if "code" in texts else {}
