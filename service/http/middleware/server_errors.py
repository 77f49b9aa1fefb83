"""Error replies for unexpected exceptions and for requests cancelled by the shutdown."""

from __future__ import annotations

import asyncio
import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scanline.service.http.errors import RETRY_SOON, ApiError

log = logging.getLogger("scanline.access")


class ServerErrorMiddleware:
    """Answers unexpected exceptions with 500 and cancellation with 503.

    Exceptions are logged with the request's id. The middleware stands next to the routes: an
    exception handler of ``Exception`` would run outside all other middleware, and its reply would
    have no request id and no CORS headers, and would not be counted.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def send_and_note(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receive, send_and_note)
        except asyncio.CancelledError:
            if started:
                raise
            message = "the server is shutting down; send the request again"
            error = ApiError(503, message, code="closing", headers=RETRY_SOON)
            await error.response(scope, receive, send)
        except Exception:
            request_id = scope["state"]["request_id"]
            extra = {"request_id": request_id}
            log.exception("request %s: unexpected exception", request_id, extra=extra)
            if not started:  # otherwise uvicorn can only close the connection
                message = "internal error; the server's log has the details under the request's id"
                error = ApiError(500, message, code="internal_error")
                await error.response(scope, receive, send)
