"""Every request gets an id, a log line and a count."""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scanline.service.engine.generation import FinishReason, Generation, Status
from scanline.service.http.addresses import client_address, client_network
from scanline.service.http.paths import route_path
from scanline.service.metrics import Metrics

log = logging.getLogger("scanline.access")

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_ID = re.compile(r"[\x21-\x7e]{1,128}")


class AccessLogMiddleware:
    """Give each reply ``X-Request-ID`` (the caller's, if it sent a plain one), log and count it.

    The state it begins has the ``caller``, an address until a key is known (of IPv6 its network of
    64 bits, for whoever has one has all of it).
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        sent = Headers(scope=scope).get("x-request-id", "")
        request_id = sent if _ID.fullmatch(sent) else f"req_{secrets.token_hex(12)}"
        client = client_address((scope.get("client") or ("",))[0])
        state = scope.setdefault("state", {})
        state |= {"request_id": request_id, "key": "", "caller": client_network(client)}
        began, status = time.perf_counter(), 499  # 499: the client left before any reply
        error: dict[str, str] = {}

        async def send_with_id(message: Message) -> None:
            nonlocal status, error
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-ID"] = request_id
            elif status >= 400 and (told := _error(message.get("body", b""))):
                error = told
                self._metrics.refused.labels(error["code"]).inc()
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        finally:
            seconds = time.perf_counter() - began
            self._count(scope, status, seconds)
            self._log(scope, status, seconds, client, error)

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        # The route's pattern, not the path: a label for every id would grow without bound.
        route = getattr(scope.get("route"), "path", "other")
        # And each method that somebody tries where it means nothing would stay as a histogram.
        method = scope["method"] if scope["method"] in _METHODS and status != 405 else "other"
        self._metrics.requests.labels(route, method, status).inc()
        self._metrics.request_seconds.labels(route, method).observe(seconds)

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
        drawn = "".join(f" {quote(fact)}" for fact in error.values())
        # Taken out of it: uvicorn keeps the last request of a connection, and all that it holds.
        if (generation := state.pop("generation", None)) is not None:
            facts = {
                "generation": generation.id, "model": generation.model, "n": generation.spec.n,
                "outcome": _outcome(generation),
            }  # fmt: skip
            extra |= facts
            drawn += " {generation} {model} n={n} {outcome}".format_map(facts)
        quiet = route_path(scope) in ("/livez", "/readyz", "/metrics")
        log.log(
            logging.DEBUG if quiet else logging.INFO,
            "%s %s %s %.1f ms %s %s%s", scope["method"], quote(scope["path"]), status, milliseconds,
            client, state["request_id"], drawn, extra=extra,
        )  # fmt: skip


def _outcome(generation: Generation) -> str:
    """Say how what was drawn ended, or that its reader did not see that."""
    status = generation.status
    if status is not Status.FINISHED:
        return status
    reasons = {image.finish_reason or FinishReason.ERROR for image in generation.images}
    return reasons.pop() if len(reasons) == 1 else "partial"


def _error(body: bytes) -> dict[str, str]:
    """Read the code of an error, and what it is about, from its reply, if there is one."""
    try:
        error = json.loads(body)["error"]
        told = {"code": error["code"], "param": error.get("param")}
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}
    known = {name: fact for name, fact in told.items() if isinstance(fact, str)}
    return known if "code" in known else {}
