"""Bodies are bounded in size, and taken as they are."""

from __future__ import annotations

from collections.abc import Callable

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scanline.service.http.errors import ApiError, error_body

MAX_PARTS = 1000


class BodyLimitMiddleware:
    """Refuse a body that is too large with 413, at once where its length is announced.

    A form, which may hold pictures, has at most ``upload`` bytes, any other body ``other()``. That
    is JSON, parsed where it keeps everyone waiting, and what takes long is less its bytes than what
    they hold: it has at most ``MAX_PARTS``. A compressed body is refused with 415.
    """

    def __init__(self, app: ASGIApp, upload: int, other: Callable[[], int]) -> None:
        self.app, self.upload, self.other = app, upload, other

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if headers.get("content-encoding", "identity").strip().lower() not in ("identity", ""):
            message = "send the body as it is, without Content-Encoding"
            body = error_body(415, message, code="unsupported_encoding")
            refusal = JSONResponse(body, 415, headers={"Accept-Encoding": "identity"})
            await refusal(scope, receive, send)
            return
        form = headers.get("content-type", "").strip().lower().startswith("multipart/form-data")
        limit = self.upload if form else self.other()
        too_large = f"the body is over {limit:,} bytes; send " + (
            "a smaller picture" if form else "less, and pictures as multipart/form-data"
        )
        announced = headers.get("content-length", "").lstrip("0")
        if len(announced) > 19 or (announced.isdecimal() and int(announced) > limit):
            body = error_body(413, too_large, code="too_large")
            await JSONResponse(body, 413, {"Connection": "close"})(scope, receive, send)
            return
        seen = parts = 0

        async def limited() -> Message:
            nonlocal seen, parts
            message = await receive()
            body = message.get("body", b"")
            seen += len(body)
            if seen > limit:
                close = {"Connection": "close"}
                raise ApiError(413, too_large, code="too_large", headers=close)
            if not form:
                parts += sum(map(body.count, (b"[", b"{", b":")))
                if parts > MAX_PARTS:
                    holds = f"the body holds over {MAX_PARTS:,} lists, objects and names"
                    raise ApiError(400, f"{holds}; send less", code="too_many")
            return message

        await self.app(scope, limited, send)
