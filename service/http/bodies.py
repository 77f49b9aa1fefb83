"""Validation shared by all request bodies and queries: known fields only, each sent once."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from json import JSONDecodeError
from typing import Any, ClassVar

from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator
from pydantic_core import PydanticCustomError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers

from scanline.service.http.errors import ApiError

MAX_FIELDS = 64
MAX_EXACT_FLOAT = 2**53 - 1  # above, several integers are the same float
LARGE_JSON_BYTES = 100_000  # a body of this size takes about a millisecond to parse
FORM_MEDIA_TYPES = ("multipart/form-data", "application/x-www-form-urlencoded")


def _to_int(value: Any) -> Any:
    """Convert a float that is exactly an integer.

    Larger floats than ``MAX_EXACT_FLOAT`` are left to be refused, because they may be rounded.
    """
    if isinstance(value, float) and value.is_integer() and abs(value) <= MAX_EXACT_FLOAT:
        return int(value)
    return value


def _to_ints(values: Any) -> Any:
    if isinstance(values, list) and float in set(map(type, values)):
        return [_to_int(value) for value in values]
    return values


# For JSON Schema, 1.0 is an integer; Lua and Godot have no other numbers. Both stand last in an
# annotation, because pydantic documents only the limits of a plain type.
ACCEPT_WHOLE_FLOAT = BeforeValidator(_to_int)
ACCEPT_WHOLE_FLOATS = BeforeValidator(_to_ints)  # of a long list; faster than one per item


class RequestBody(BaseModel):
    """Base class of request bodies, JSON or form. A null field counts as left out.

    With ``ignore_unknown_nulls``, this is also true of a field that does not exist.
    """

    model_config = ConfigDict(extra="forbid")
    ignore_unknown_nulls: ClassVar[bool] = False

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        if len(body) > MAX_FIELDS:  # pydantic would build an error object for each unknown field
            raise PydanticCustomError(
                "too_many_fields", f"there are {len(body):,} fields, and most of them are unknown"
            )

        def keeps_null(name: str) -> bool:
            field = cls.model_fields.get(name)
            return not cls.ignore_unknown_nulls if field is None else field.is_required()

        return {
            name: value for name, value in body.items() if value is not None or keeps_null(name)
        }

    @property
    def non_default_fields(self) -> set[str]:
        """Names of the fields whose value differs from the default."""
        fields = type(self).model_fields
        return {f for f in self.model_fields_set if getattr(self, f) != fields[f].default}


def document_form(**example: Any) -> Callable[[dict[str, Any]], None]:
    """Return a ``json_schema_extra`` function that documents a form by an example.

    ``/docs`` fills the form with the example. Without one, Swagger UI would invent values that the
    server refuses, such as a word in each text field. File fields stay empty.
    """

    def document(schema: dict[str, Any]) -> None:
        schema["examples"] = [example]
        for name, field in schema["properties"].items():
            if name in example and name != "image":
                field["example"] = example[name]
            elif field.get("default", "") is None:
                field["example"] = ""

    return document


def describe_json_error(cause: BaseException | None) -> str:
    """Return a sentence that says why a JSON body could not be parsed."""
    match cause:
        case RecursionError():
            reason = "it is nested too deeply"
        case UnicodeDecodeError():
            reason = "it is not UTF-8"
        case JSONDecodeError():
            reason = cause.msg
        case ValueError():
            reason = "a number in it has too many digits"
        case _:
            reason = "it does not parse"
    return f"the body is not valid JSON: {reason}"


def media_type(headers: Headers) -> str:
    """Return the media type of a request's body, without parameters; "" if it has none."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def wrong_media_type(message: str) -> ApiError:
    """Return the error of a body that a route cannot read at all."""
    return ApiError(415, message, param="content-type", code="unsupported_media_type")


def unique_form_fields(*lists: str) -> Callable[[Request], Awaitable[None]]:
    """Return a dependency that refuses bodies other than forms, and repeated form fields.

    Args:
        lists: Names of fields that may be repeated.
    """

    async def check(request: Request) -> None:
        if media_type(request.headers) not in FORM_MEDIA_TYPES:
            raise wrong_media_type("send multipart/form-data, with each image as a file")
        form = await request.form()
        _check_unique([name for name, _ in form.multi_items() if name not in lists])

    return check


async def unique_json_keys(request: Request) -> None:
    """Refuse a JSON body that repeats a key, because parsers silently keep only the last value.

    A body that does not parse is left to FastAPI, which refuses it.
    """
    if "json" in media_type(request.headers):
        body = await request.body()
        if len(body) > LARGE_JSON_BYTES:  # it would block the event loop
            await run_in_threadpool(_check_json_keys, body)
        else:
            _check_json_keys(body)


def _check_json_keys(body: bytes) -> None:
    def check(pairs: list[tuple[str, Any]]) -> None:
        _check_unique([name for name, _ in pairs])

    with contextlib.suppress(ValueError, RecursionError):
        json.loads(body, object_pairs_hook=check)


def _check_unique(names: list[str]) -> None:
    if len(set(names)) < len(names):
        repeated = Counter(names).most_common(1)[0][0]
        raise ApiError(400, f"{repeated}: send it once", param=repeated, code="too_many")


async def unique_query_params(request: Request) -> None:
    """Refuse a repeated query parameter of the route.

    Parameters that the route does not have are ignored, because caches, trackers and gateways add
    their own (``_``, ``fbclid``, ``api-version``).
    """
    route: APIRoute = request.scope["route"]
    known: list[str] = []
    for field in route.dependant.query_params:
        model = field.field_info.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            known += model.model_fields
        else:
            known.append(field.alias)
    _check_unique([name for name, _ in request.query_params.multi_items() if name in known])


async def no_query_params(request: Request) -> None:
    """Refuse query parameters of a route whose options belong in the body."""
    if name := next(iter(request.query_params), None):
        raise ApiError(
            400, f"{name}: this route has no query parameters; send it in the body",
            param=name, code="extra_forbidden",
        )  # fmt: skip
