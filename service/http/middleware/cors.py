"""Starlette's CORS middleware, with JSON errors."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware as StarletteCORSMiddleware
from starlette.responses import Response

from scanline.service.http.errors import ApiError


class CORSMiddleware(StarletteCORSMiddleware):
    """Lets pages of other origins call the API, as the settings allow."""

    def preflight_response(self, request_headers: Headers) -> Response:
        """Answer a preflight request."""
        answer = super().preflight_response(request_headers)
        if answer.status_code < 400:
            return answer
        message = bytes(answer.body).decode()
        message += (
            "; SCANLINE_CORS_ORIGINS lists the allowed origins" if "origin" in message else ""
        )
        kept = {n: v for n, v in answer.headers.items() if n.startswith(("access-", "vary"))}
        return ApiError(answer.status_code, message, code="cors_refused", headers=kept).response
