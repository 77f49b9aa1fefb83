"""One shape for every error (OpenAI's), and sentences that say what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.exceptions import HTTPException

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


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


def error_body(
    status: int, message: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """Give the JSON body of an error; what it quotes is cut where long, and made valid UTF-8."""
    message, param = _printable(message, 1000), None if param is None else _printable(param, 100)
    fallback = "invalid_request_error" if status < 500 else "server_error"
    kind = _TYPES.get(status, fallback)
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _printable(text: str, most: int) -> str:
    text = text if len(text) <= most else text[:most] + " …"
    return text.encode("utf-8", "replace").decode()  # JSON may hold half a surrogate pair


def describe(errors: Sequence[Mapping[str, Any]]) -> tuple[str, str | None, str | None]:
    """Turn pydantic's list of what is wrong into one sentence, the field, and a code."""
    sentences: list[str] = []
    for error in errors:
        # FastAPI puts "body", "query" … first, and a union adds the name of each member it tried.
        field = str(error["loc"][1]) if len(error["loc"]) > 1 else None
        message, code = str(error["msg"]), str(error["type"])
        if code == "extra_forbidden":
            message = "there is no such field; take it out, or see /docs for those there are"
        elif code == "json_invalid":
            reason = error.get("ctx", {}).get("error", "it does not parse")
            message, field = f"the body is not valid JSON: {reason}", None
        elif code == "missing":
            message = "this field is required" if field else "the body is empty; send JSON"
        elif code == "model_attributes_type":
            message = "send a JSON object, with Content-Type: application/json"
        sentences.append(f"{field}: {message}" if field else message)
    first = errors[0]
    named = len(first["loc"]) > 1 and first["type"] != "json_invalid"
    param = str(first["loc"][1]) if named else None
    return "; ".join(dict.fromkeys(sentences)), param, str(first["type"])
