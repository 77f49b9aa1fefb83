"""Mapping of exceptions to API errors, and the documentation of error replies."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match, Mount

from scanline.model.images import ImageError
from scanline.service.engine.generation import Generation
from scanline.service.engine.idempotency import IdempotencyConflictError
from scanline.service.engine.image import FinishReason
from scanline.service.engine.queue_limits import ClosedError, RefusedError
from scanline.service.http.bodies import describe_json_error, media_type, wrong_media_type
from scanline.service.http.disconnect import ClientDisconnectedError
from scanline.service.http.errors import (
    RETRY_SOON,
    ApiError,
    ErrorReply,
    describe_validation_errors,
)
from scanline.service.http.paths import root_path, route_path

DOMAIN_ERRORS: tuple[type[Exception], ...] = (
    ImageError, RefusedError, ClosedError, IdempotencyConflictError,
)  # fmt: skip

ERROR_SCHEMA: dict[str, Any] = {"model": ErrorReply}
_RETRY_HEADER = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
_ERRORS: dict[int, dict[str, Any]] = {
    400: {"description": "The request is invalid."},
    401: {"description": "The API key is missing or wrong."},
    403: {"description": "The form was sent by a page of another site."},
    404: {"description": "There is no such model or generation."},
    406: {"description": "None of the accepted media types is available."},
    409: {
        "description": "There are no files yet, because the generation is still running, or none "
        "at all, because it was cancelled by another request.",
        "headers": _RETRY_HEADER,
    },
    413: {"description": "The body is too large."},
    415: {"description": "The body has the wrong media type, is compressed, or is not in UTF-8."},
    422: {"description": "The `Idempotency-Key` was used before with another request."},
    429: {
        "description": "The queue, or your share of it, is full; your quota is used up; or your "
        "requests hold too much data.",
        "headers": _RETRY_HEADER,
    },
    500: {"description": "Drawing failed."},
    503: {
        "description": "The server is loading or shutting down, or has no space for an upload.",
        "headers": _RETRY_HEADER,
    },
}


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI documentation of a route's errors; 400 and 401 are always included."""
    return {status: ERROR_SCHEMA | _ERRORS[status] for status in sorted({400, 401, *statuses})}


def to_api_error(error: Exception) -> ApiError:
    """Convert one of ``DOMAIN_ERRORS`` to an API error."""
    match error:
        case ImageError():
            return ApiError(400, str(error), param=error.param, code=error.code)
        case RefusedError():
            headers = {"Retry-After": str(error.retry_after)}
            return ApiError(429, str(error), code=error.code, headers=headers)
        case ClosedError():
            return ApiError(503, str(error), code="closing", headers=RETRY_SOON)
        case IdempotencyConflictError():
            return ApiError(
                422,
                "Idempotency-Key: this key was used before with another request; choose a new key, "
                "or repeat the earlier request unchanged",
                param="idempotency-key",
                code="idempotency_key_reused",
            )
    raise error


def generation_error(generation: Generation) -> ApiError | None:
    """Return the error that a finished generation ended with, if any.

    It is an internal error, or the shutdown of the server.
    """
    if generation.error is None:
        return None
    if generation.closed:
        return to_api_error(ClosedError(generation.error))
    return ApiError(500, generation.error, code="generation_failed")


def incomplete_error(generation: Generation) -> ApiError | None:
    """Return an error if a finished generation has incomplete images.

    It is for replies that contain only pixels, where an incomplete image would look complete.
    """
    if all(image.finish_reason is FinishReason.LENGTH for image in generation.images):
        return None
    message = (
        "the generation was cancelled; send the request again, or get the pixels drawn so far as "
        f"JSON from /v1/generations/{generation.id}"
    )
    return generation_error(generation) or ApiError(409, message, code="cancelled")


def add_exception_handlers(app: FastAPI) -> None:
    """Answer all exceptions of the routes with errors in the same shape."""

    async def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if isinstance(error.__cause__, ClientDisconnect):  # while FastAPI read the body
            return await on_disconnect(request, error)
        if isinstance(error.__cause__, OSError):  # a full disk, for example: not the form's fault
            raise error.__cause__
        converted = error if isinstance(error, ApiError) else _describe_http_error(request, error)
        if error.status_code == 405:
            allowed = ", ".join(sorted(_allowed_methods(request)))
            converted.headers = {**(converted.headers or {}), "Allow": allowed}
        return converted.response

    async def on_domain_error(request: Request, error: Exception) -> Response:
        return to_api_error(error).response

    async def on_disconnect(request: Request, error: Exception) -> Response:
        return Response(status_code=499)  # for the access log; the client has gone

    async def on_invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        problems = error.errors()
        not_object = any(one["type"] == "model_attributes_type" for one in problems)
        if not_object and "json" not in media_type(request.headers):
            message = "send a JSON object, with Content-Type: application/json"
            return wrong_media_type(message).response
        message, param, code = describe_validation_errors(problems)
        return ApiError(400, message, param=param, code=code).response

    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(RequestValidationError, on_invalid)
    for kind in DOMAIN_ERRORS:
        app.add_exception_handler(kind, on_domain_error)
    for kind in (ClientDisconnectedError, ClientDisconnect):
        app.add_exception_handler(kind, on_disconnect)


def _describe_http_error(request: Request, error: HTTPException) -> ApiError:
    """Convert an error of FastAPI or Starlette, whose message says little, to an API error."""
    status, message, code = error.status_code, str(error.detail), None
    docs = f"{root_path(request.scope)}/docs"
    if status == 400:  # the body could not be read
        if "form" in request.headers.get("content-type", ""):
            reason = message.rstrip(".") if error.__cause__ is None else "it is malformed"
            message = (
                f"the form cannot be read ({reason}); send it as multipart/form-data, images as "
                "files"
            )
            code = "form_invalid"
        elif error.__cause__ is not None:
            message, code = describe_json_error(error.__cause__), "json_invalid"
    elif status == 404:
        message = f"there is nothing at {request.url.path}; see {docs}"
    elif status == 405:
        message = f"{request.url.path} does not support {request.method}; see {docs}"
    return ApiError(status, message, code=code, headers=error.headers)


def _allowed_methods(request: Request) -> set[str]:
    """Return all methods of a path; each route knows only its own."""
    # A path of the schema may match another route too: `/v1/models/reload` is no `{name}`.
    documented = request.app.openapi()["paths"].get(route_path(request.scope), {})
    methods = {method.upper() for method in documented} or _matching_methods(request)
    return methods | {"HEAD"} if "GET" in methods else methods


def _matching_methods(request: Request) -> set[str]:
    """Return the methods of all routes that match a path."""
    methods: set[str] = set()
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        scope = {**request.scope, "method": method, "root_path": root_path(request.scope)}
        for route in request.app.routes:
            reads_only = isinstance(route, Mount)  # files, although a mount matches any method
            if route.matches(scope)[0] is Match.FULL and (method == "GET" or not reads_only):
                methods.add(method)
    return methods
