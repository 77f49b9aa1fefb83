"""Error replies, all in the shape of OpenAI's API."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException

RETRY_SOON = {"Retry-After": "1"}
FILE_REQUIRED = "must be a file (with curl, -F {}=@picture.png)"  # formatted with the field's name
_SUBJECT = re.compile(r"^(Input|String|List) should ")  # in pydantic's messages
_PARSER_DETAILS = re.compile(r", (unable to|got a number|exceeded) .*")
_WITHOUT_VALUE = ("extra_forbidden", "json_invalid", "missing", "model_attributes_type")
_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
_EXAMPLE: dict[str, Any] = {
    "message": "n: must be greater than or equal to 1; got 0",
    "type": "invalid_request_error",
    "param": "n",
    "code": "greater_than_equal",
}


class ErrorBody(BaseModel):
    """An error: its message, type, field and code. The message explains how to correct it."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(BaseModel):
    """The body of every error reply."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"error": _EXAMPLE}]})

    error: ErrorBody


class ApiError(HTTPException):
    """Error that is shown to the client.

    Args:
        status: HTTP status.
        message: Sentence that explains the error and how to correct it.
        param: Name of the field, header or parameter that is wrong.
        code: Machine-readable reason.
        headers: Headers of the reply.
    """

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
        """The reply's body. Texts, which may quote the request, are shortened and valid UTF-8."""
        status, param = self.status_code, self.param
        kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
        param = None if param is None else _shorten(param, 100)
        message = _shorten(self.detail, 1000)
        return ErrorReply(error=ErrorBody(message=message, type=kind, param=param, code=self.code))

    @property
    def response(self) -> JSONResponse:
        """The reply."""
        return JSONResponse(self.reply.model_dump(), self.status_code, self.headers)


def not_ready(message: str) -> ApiError:
    """Return the error of a server that is loading, shutting down or stuck."""
    return ApiError(503, message, code="not_ready", headers=RETRY_SOON)


def _shorten(text: str, limit: int) -> str:
    text = text if len(text) <= limit else text[:limit] + " …"
    return text.encode("utf-8", "replace").decode()  # JSON may contain lone surrogates


def describe_validation_errors(
    errors: Sequence[Mapping[str, Any]],
) -> tuple[str, str | None, str | None]:
    """Summarize pydantic's validation errors.

    Returns:
        One sentence for all errors, and the field and the code of the first.
    """
    reasons: dict[tuple[str | None, str], list[str]] = {}  # several for a union, one per member
    for error in errors:
        # FastAPI puts "body", "query" … first.
        field = str(error["loc"][1]) if len(error["loc"]) > 1 else None
        message, code = str(error["msg"]).removeprefix("Value error, "), str(error["type"])
        message = _PARSER_DETAILS.sub("", _SUBJECT.sub("must ", message))
        got = "" if code in _WITHOUT_VALUE else _quote(error.get("input"))
        if code == "extra_forbidden":
            message = "there is no such field; remove it, or see /docs for the known ones"
        elif code == "json_invalid":
            reason = error.get("ctx", {}).get("error", "it does not parse")
            message, field = f"the body is not valid JSON: {reason}", None
        elif code == "missing":
            message = "this field is required" if field else "the body is empty; send JSON"
        elif "Expected UploadFile" in message:
            message = FILE_REQUIRED.format(field)
        elif code == "model_attributes_type":
            message = "send a JSON object"
        elif code == "int_parsing_size":
            message = "is too large"
        reasons.setdefault((field, got), []).append(message)
    sentences = [
        f"{field}: {', or '.join(dict.fromkeys(all_reasons))}{got}" if field else all_reasons[0]
        for (field, got), all_reasons in reasons.items()
    ]
    first = errors[0]
    named = len(first["loc"]) > 1 and first["type"] != "json_invalid"
    param = str(first["loc"][1]) if named else None
    return "; ".join(sentences), param, str(first["type"])


def _quote(value: object) -> str:
    """Return a number or text as the end of a message, "" for other values."""
    if not isinstance(value, str | int | float):
        return ""
    return f"; got {_shorten(json.dumps(value, ensure_ascii=False), 40)}"
