"""One shape for every error (OpenAI's), and sentences that say what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException

from scanline.model.images import ImageError
from scanline.service.engine.idempotency import IdempotencyConflictError
from scanline.service.engine.in_flight import TooManyInFlightError
from scanline.service.engine.queue import ClosedError, QueueFullError

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


_EXAMPLE: dict[str, Any] = {
    "message": "n: must be greater than or equal to 1",
    "type": "invalid_request_error",
    "param": "n",
    "code": "greater_than_equal",
}


class ErrorBody(BaseModel):
    """What went wrong, in a sentence that says what to do."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(BaseModel):
    """The one shape of every error."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"error": _EXAMPLE}]})

    error: ErrorBody


ERROR_SCHEMA: dict[str, Any] = {"model": ErrorReply}
_RETRY = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
RETRY_SOON = {"Retry-After": "1"}
_ERRORS: dict[int, dict[str, Any]] = {
    400: {"description": "Something in the request is wrong."},
    401: {"description": "The API key is missing or wrong."},
    403: {"description": "A form of another site's page."},
    404: {"description": "There is no such model or generation."},
    406: {"description": "No media type asked for can be given."},
    409: {
        "description": "It is not drawn yet, or was cancelled: there are no files of it.",
        "headers": _RETRY,
    },
    413: {"description": "The body is too large."},
    415: {"description": "The body is compressed, or a form that is not in UTF-8."},
    422: {"description": "The `Idempotency-Key` came before with another request."},
    429: {
        "description": "The queue is full, or your share of it; or requests hold too much.",
        "headers": _RETRY,
    },
    500: {"description": "Drawing failed."},
    503: {"description": "The server is loading or shutting down.", "headers": _RETRY},
}


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Document the errors that a route may give, beside those of every route under ``/v1``."""
    return {status: ERROR_SCHEMA | _ERRORS[status] for status in sorted({400, 401, *statuses})}


FILE_REQUIRED = "must be a file (with curl, -F {}=@picture.png)"  # by the field's name


class ApiError(HTTPException):
    """An error that a caller sees: an HTTP status, a sentence, and what it is about."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        self.param, self.code = param, code

    @property
    def reply(self) -> ErrorReply:
        """Give it its shape; what it quotes is cut where long, and made valid UTF-8."""
        status, param = self.status_code, self.param
        kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
        param = None if param is None else _printable(param, 100)
        message = _printable(self.detail, 1000)
        return ErrorReply(error=ErrorBody(message=message, type=kind, param=param, code=self.code))

    @property
    def response(self) -> JSONResponse:
        """Give it as a reply."""
        return JSONResponse(self.reply.model_dump(), self.status_code, self.headers)


def not_ready(message: str) -> ApiError:
    """Say that the server does not draw yet, or now."""
    return ApiError(503, message, code="not_ready", headers=RETRY_SOON)


DOMAIN_ERRORS: tuple[type[Exception], ...] = (
    ImageError, QueueFullError, ClosedError, TooManyInFlightError, IdempotencyConflictError,
)  # fmt: skip


def to_api_error(error: Exception) -> ApiError:
    """Say over HTTP why a picture, or any work at all, is refused: one of ``DOMAIN_ERRORS``."""
    match error:
        case ImageError():
            return ApiError(400, str(error), param=error.param, code=error.code)
        case QueueFullError():
            headers = {"Retry-After": str(error.retry_after)}
            return ApiError(429, str(error), code="queue_full", headers=headers)
        case ClosedError():
            return ApiError(503, str(error), code="closing", headers=RETRY_SOON)
        case TooManyInFlightError():
            return ApiError(429, str(error), code="too_many_in_flight", headers=RETRY_SOON)
        case IdempotencyConflictError():
            return ApiError(
                422,
                "Idempotency-Key: this key came before with another request; choose a new key for "
                "a new request, or repeat the old one as it was",
                param="idempotency-key",
                code="idempotency_key_reused",
            )
    raise error


def _printable(text: str, most: int) -> str:
    text = text if len(text) <= most else text[:most] + " …"
    return text.encode("utf-8", "replace").decode()  # JSON may hold half a surrogate pair


def describe_validation_errors(
    errors: Sequence[Mapping[str, Any]],
) -> tuple[str, str | None, str | None]:
    """Turn pydantic's list of what is wrong into one sentence, the field, and a code."""
    sentences: list[str] = []
    for error in errors:
        # FastAPI puts "body", "query" … first, and a union adds the name of each member it tried.
        field = str(error["loc"][1]) if len(error["loc"]) > 1 else None
        message, code = str(error["msg"]).removeprefix("Value error, "), str(error["type"])
        message = message.replace("Input should be ", "must be ", 1)
        if code == "extra_forbidden":
            message = "there is no such field; take it out, or see /docs for those there are"
        elif code == "json_invalid":
            reason = error.get("ctx", {}).get("error", "it does not parse")
            message, field = f"the body is not valid JSON: {reason}", None
        elif code == "missing":
            message = "this field is required" if field else "the body is empty; send JSON"
        elif "Expected UploadFile" in message:
            message = FILE_REQUIRED.format(field)
        elif code == "model_attributes_type":
            message = "send a JSON object, with Content-Type: application/json"
        sentences.append(f"{field}: {message}" if field else message)
    first = errors[0]
    named = len(first["loc"]) > 1 and first["type"] != "json_invalid"
    param = str(first["loc"][1]) if named else None
    return "; ".join(dict.fromkeys(sentences)), param, str(first["type"])
