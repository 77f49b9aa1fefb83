"""Multipart forms as clients send them, beyond what Starlette's parser accepts."""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser

from scanline.service.http.errors import RETRY_SOON, ApiError

log = logging.getLogger("scanline.server")

_QUOTED = re.compile(rb'"(?:\\.|[^"\\])*"')
# A file name as RFC 8187 encodes it, perhaps in several pieces (RFC 2231).
_EXTENDED_FILENAME = re.compile(rb";[ \t]*filename\*[0-9]*\*?[ \t]*=", re.IGNORECASE)


class FormRoute(APIRoute):
    """Route that accepts all multipart forms of ``_FormRequest``."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler, with another class of requests."""
        handle = super().get_route_handler()

        async def handle_form(request: Request) -> Response:
            return await handle(_FormRequest(request.scope, request.receive))

        return handle_form


class _FormRequest(Request):
    """Request whose form may have a preamble, and files that are named by ``filename*`` only."""

    async def _get_form(
        self,
        *,
        max_files: int | float = 1000,
        max_fields: int | float = 1000,
        max_part_size: int = 2**20,
    ) -> FormData:
        limits = {"max_files": max_files, "max_fields": max_fields, "max_part_size": max_part_size}
        media_type, options = parse_options_header(self.headers.get("content-type"))
        boundary = options.get(b"boundary")
        if self._form is None and media_type == b"multipart/form-data" and boundary:
            async with aclosing(self.stream()) as stream:
                body = _without_preamble(stream, boundary)
                parser = _FormParser(self.headers, body, **limits)  # type: ignore[arg-type]
                try:
                    self._form = await parser.parse()
                except MultiPartException as error:
                    raise HTTPException(400, error.message) from None
                except OSError as error:  # of the temporary file of a large part
                    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                        raise
                    log.error("no space for an upload in the temporary folder: %s", error)
                    raise ApiError(
                        503, "the server has no space for this upload; try again later",
                        code="no_space", headers=RETRY_SOON,
                    ) from None  # fmt: skip
        return await super()._get_form(**limits)  # type: ignore[arg-type]


class _FormParser(MultiPartParser):
    """Parser that takes a part with only ``filename*`` for a file.

    RFC 7578 forbids this parameter, and some clients send it nevertheless. Without a ``filename``
    Starlette would decode the file as text.
    """

    def on_headers_finished(self) -> None:
        """Add a ``filename`` to a part that lacks it. No route reads its value."""
        disposition = self._current_part.content_disposition or b""
        _, options = parse_options_header(disposition)
        if b"filename" not in options and _EXTENDED_FILENAME.search(_QUOTED.sub(b"", disposition)):
            self._current_part.content_disposition = disposition + b'; filename="file"'
        super().on_headers_finished()


async def _without_preamble(
    chunks: AsyncIterator[bytes], boundary: bytes
) -> AsyncGenerator[bytes, None]:
    """Yield a multipart body from its first boundary on (RFC 2046, section 5.1.1).

    Raises:
        MultiPartException: If there is text, but no boundary.
    """
    delimiter = b"\n--" + boundary
    head, length, found = b"\n", 0, False
    async for chunk in chunks:
        if found:
            yield chunk
            continue
        length += len(chunk)
        head += chunk
        if found := (at := head.find(delimiter)) >= 0:
            yield head[at + 1 :]
        else:
            head = head[-len(delimiter) :]
    if length and not found:
        raise MultiPartException("it does not contain the boundary of its Content-Type")
