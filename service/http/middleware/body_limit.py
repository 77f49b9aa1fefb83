"""Bodies are bounded in size, and taken as they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scanline.service.http.errors import RETRY_SOON, ApiError

MAX_JSON_NODES = 1000
MAX_BODY_SHARES = 4  # of what bodies may hold: a caller has one
SHARE_BYTES = 2**26  # or two of the largest bodies
_ENCODINGS = ("utf-8", "utf8", "us-ascii", "ascii")  # of a form's text


class BodyLimitMiddleware:
    """Refuse a body that is too large with 413, at once where its length is announced.

    A form, which may hold pictures, has at most ``upload`` bytes, any other body ``other()``. That
    is JSON, whose parsing holds up the event loop, and costs by its lists, objects and names more
    than by its bytes: it has at most ``MAX_JSON_NODES`` of them. A compressed body is refused with
    415,
    and a form in another encoding than UTF-8: Python has one that takes minutes, and keeps the name
    of any other. What all requests under way hold is bounded, and what a caller's do to a share of
    that (429).
    """

    def __init__(self, app: ASGIApp, upload: int, other: Callable[[], int]) -> None:
        self.app, self.upload, self.other = app, upload, other
        self._held = Counter[str]()  # bytes, by the caller
        self._all = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if headers.get("content-encoding", "identity").lower() not in ("identity", ""):
            message = "send the body as it is, without Content-Encoding"
            plain = {"Accept-Encoding": "identity"}
            refusal = ApiError(415, message, code="unsupported_encoding", headers=plain)
            await refusal.response(scope, receive, send)
            return
        kind = headers.get("content-type", "")
        form = kind.lower().startswith("multipart/form-data")
        if form and _encoding(kind) not in _ENCODINGS:
            message = "send the form in UTF-8, and its Content-Type without a charset"
            refusal = ApiError(415, message, code="unsupported_encoding")
            await refusal.response(scope, receive, send)
            return
        limit = self.upload if form else self.other()
        less = "a smaller picture" if form else "less, and pictures as multipart/form-data"
        too_large = ApiError(
            413, f"the body is over {limit:,} bytes; send {less}", code="too_large",
            headers={"Connection": "close"},
        )  # fmt: skip
        announced = headers.get("content-length", "").lstrip("0")
        if len(announced) > 19 or (announced.isdecimal() and int(announced) > limit):
            await too_large.response(scope, receive, send)
            return
        read = scope["method"] not in ("GET", "HEAD", "DELETE")
        seen = parts = 0
        caller, share = scope["state"]["caller"], caller_body_bytes(max(self.upload, self.other()))

        async def limited() -> Message:
            nonlocal seen, parts
            message = await receive()
            body = message.get("body", b"")
            if body and not read:  # who waits for the client's leaving would be refused it
                return {**message, "body": b""}
            seen += len(body)
            self._hold(caller, len(body), share)
            if seen > limit:
                raise too_large
            if not form:
                parts += sum(map(body.count, (b"[", b"{", b":")))
                if parts > MAX_JSON_NODES:
                    holds = f"the body holds over {MAX_JSON_NODES:,} lists, objects and names"
                    raise ApiError(400, f"{holds}; send less", code="too_many")
            return message

        try:
            await self.app(scope, limited, send)
        finally:
            self._all -= seen
            self._held[caller] -= seen
            if not self._held[caller]:
                del self._held[caller]

    def _hold(self, caller: str, size: int, share: int) -> None:
        """Count what came of a body; raises ``ApiError`` where requests under way have too much."""
        self._all += size
        self._held[caller] += size
        own = self._held[caller] > share
        if size and (own or self._all > MAX_BODY_SHARES * share):
            whose = "yours" if own else "all of them"
            raise ApiError(
                429, f"requests under way, {whose} together, hold too much; send this again when "
                "some are answered",
                code="uploads_full", headers=RETRY_SOON | {"Connection": "close"},
            )  # fmt: skip


def caller_body_bytes(largest: int) -> int:
    """Give what the bodies of a caller's requests under way may hold, of so large ones at most."""
    return max(SHARE_BYTES, 2 * largest)


def _encoding(content_type: str) -> str:
    """Read what a form's text is encoded in, as Starlette does."""
    options: dict[bytes, bytes] = parse_options_header(content_type)[1]
    return options.get(b"charset", b"utf-8").decode("latin-1").lower()
