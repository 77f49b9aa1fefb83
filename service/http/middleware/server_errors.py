"""Bugs, and requests cut off at the end, answered in the usual shape."""

from __future__ import annotations

import asyncio
import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scanline.service.http.errors import RETRY_SOON, ApiError

log = logging.getLogger("scanline.access")


class ServerErrorMiddleware:
    """Turn a bug into a 500 of the usual shape, logged with its id; what is cut off into a 503.

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
        except asyncio.CancelledError:
            if started:
                raise
            message = "the server is shutting down; send the request again"
            refusal = ApiError(503, message, code="closing", headers=RETRY_SOON)
            await refusal.response(scope, receive, send)
        except Exception:
            request_id = scope["state"]["request_id"]
            log.exception("request %s met a bug", request_id, extra={"request_id": request_id})
            if not started:  # else the server cuts the reply off, as it must
                message = "something went wrong inside the server; the log has the request's id"
                refusal = ApiError(500, message, code="internal_error")
                await refusal.response(scope, receive, send)
