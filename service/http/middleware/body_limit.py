"""Limits on the size, the encoding and the structure of request bodies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scanline.service.http.errors import RETRY_SOON, ApiError

MAX_JSON_NODES = 1000
MAX_BODY_SHARES = 4  # all bodies together may be as large as the shares of this many callers
MIN_SHARE_BYTES = 2**26
_CHARSETS = ("utf-8", "utf8", "us-ascii", "ascii")  # of a form's text


class BodyLimitMiddleware:
    """Refuses bodies that are too large or too costly to parse.

    - A form, which may contain files, has at most ``max_form`` bytes, and any other body at most
      ``max_other()``. A larger one is refused with 413, at once if its length is announced.
    - Any other body is JSON. Parsing it blocks the event loop, for a time that depends on the
      number of lists, objects and names rather than on bytes: there may be ``MAX_JSON_NODES``.
    - A compressed body is refused with 415.
    - A form in a charset other than UTF-8 is refused with 415, because one of Python's codecs
      (Punycode) takes minutes, and Python caches the name of every unknown one.
    - The bodies of all requests in progress have a common limit, and each caller has a share of it
      (429).

    Args:
        app: The application.
        max_form: Maximum size of a form in bytes.
        max_other: Function that returns the maximum size of any other body in bytes.
    """

    def __init__(self, app: ASGIApp, max_form: int, max_other: Callable[[], int]) -> None:
        self.app, self._max_form, self._max_other = app, max_form, max_other
        self._caller_bytes = Counter[str]()  # of requests in progress
        self._total_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if headers.get("content-encoding", "identity").lower() not in ("identity", ""):
            message = "send the body uncompressed, without Content-Encoding"
            identity = {"Accept-Encoding": "identity"}
            error = ApiError(415, message, code="unsupported_encoding", headers=identity)
            await error.response(scope, receive, send)
            return
        content_type = headers.get("content-type", "")
        is_form = content_type.lower().startswith("multipart/form-data")
        if is_form and _charset(content_type) not in _CHARSETS:
            message = "send the form in UTF-8, and its Content-Type without a charset"
            error = ApiError(415, message, code="unsupported_encoding")
            await error.response(scope, receive, send)
            return
        limit = self._max_form if is_form else self._max_other()
        hint = "smaller files" if is_form else "less, and files as multipart/form-data"
        too_large = ApiError(
            413, f"the body exceeds {limit:,} bytes; send {hint}", code="too_large",
            headers={"Connection": "close"},
        )  # fmt: skip
        length = headers.get("content-length", "").lstrip("0")
        if len(length) > 19 or (length.isdecimal() and int(length) > limit):
            await too_large.response(scope, receive, send)
            return
        takes_body = scope["method"] not in ("GET", "HEAD", "DELETE")
        received = nodes = 0
        caller = scope["state"]["caller"]
        share = caller_body_bytes(max(self._max_form, self._max_other()))

        async def receive_limited() -> Message:
            nonlocal received, nodes
            message = await receive()
            body = message.get("body", b"")
            if body and not takes_body:
                # Dropped instead of refused: the route waits here only for the disconnect.
                return {**message, "body": b""}
            received += len(body)
            self._hold(caller, len(body), share)
            if received > limit:
                raise too_large
            if not is_form:
                nodes += sum(map(body.count, (b"[", b"{", b":")))
                if nodes > MAX_JSON_NODES:
                    excess = f"the body has over {MAX_JSON_NODES:,} lists, objects and names"
                    raise ApiError(400, f"{excess}; send less", code="too_many")
            return message

        try:
            await self.app(scope, receive_limited, send)
        finally:
            self._total_bytes -= received
            self._caller_bytes[caller] -= received
            if not self._caller_bytes[caller]:
                del self._caller_bytes[caller]

    def _hold(self, caller: str, size: int, share: int) -> None:
        """Count a received part of a body; raise ``ApiError`` if a limit is exceeded."""
        self._total_bytes += size
        self._caller_bytes[caller] += size
        over_share = self._caller_bytes[caller] > share
        if size and (over_share or self._total_bytes > MAX_BODY_SHARES * share):
            whose = "your requests" if over_share else "all requests"
            raise ApiError(
                429, f"{whose} in progress contain too much data; try again when some have been "
                "answered",
                code="uploads_full", headers=RETRY_SOON | {"Connection": "close"},
            )  # fmt: skip


def caller_body_bytes(largest: int) -> int:
    """Return the bytes that the bodies of a caller's requests in progress may have together.

    Args:
        largest: Size of the largest body that is allowed.
    """
    return max(MIN_SHARE_BYTES, 2 * largest)


def _charset(content_type: str) -> str:
    """Return the charset of a form's text, parsed as Starlette parses it."""
    options: dict[bytes, bytes] = parse_options_header(content_type)[1]
    return options.get(b"charset", b"utf-8").decode("latin-1").lower()
