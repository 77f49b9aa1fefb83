"""What bodies and queries have in common: few fields, each known, and each sent once."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from json import JSONDecodeError
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError
from starlette.concurrency import run_in_threadpool

from scanline.service.http.errors import ApiError

MAX_FIELDS = 64
LARGE_JSON_BYTES = 100_000  # bytes, which take a millisecond to parse
FORM_MEDIA_TYPES = ("multipart/form-data", "application/x-www-form-urlencoded")


class RequestBody(BaseModel):
    """A body, JSON or a form; null is as good as leaving a field out."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        if len(given) > MAX_FIELDS:  # pydantic builds an error for each that is unknown
            raise PydanticCustomError(
                "too_many_fields", f"there are {len(given):,} fields, and few that are known"
            )
        known = cls.model_fields
        return {
            name: value
            for name, value in given.items()
            if value is not None or name not in known or known[name].is_required()
        }

    @property
    def non_default_fields(self) -> set[str]:
        """Name the fields that say something else than they do when left out."""
        fields = type(self).model_fields
        return {f for f in self.model_fields_set if getattr(self, f) != fields[f].default}


def document_form(**example: Any) -> Callable[[dict[str, Any]], None]:
    """Give what documents a form by an example, with which `/docs` fills it in; files are chosen.

    It would make up a word for a text and the largest number, which are refused.
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
    """Say what is wrong with a body of JSON that could not even be parsed."""
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


def unique_form_fields(*lists: str) -> Callable[[Request], Awaitable[None]]:
    """Give a dependency that refuses a body that is no form, or a field sent twice in it.

    Those named in ``lists`` may come more than once.
    """

    async def check(request: Request) -> None:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in FORM_MEDIA_TYPES:
            raise ApiError(
                400, "send multipart/form-data, with pictures as files",
                param="content-type", code="unsupported",
            )  # fmt: skip
        form = await request.form()
        _check_once([name for name, _ in form.multi_items() if name not in lists])

    return check


async def unique_json_keys(request: Request) -> None:
    """Refuse a body of JSON that names a field twice: a parser keeps the last, and tells nobody.

    One that does not parse is refused by whoever reads it.
    """
    if "json" in request.headers.get("content-type", "").partition(";")[0].lower():
        body = await request.body()
        if len(body) > LARGE_JSON_BYTES:  # others would wait for it
            await run_in_threadpool(_check_names, body)
        else:
            _check_names(body)


def _check_names(body: bytes) -> None:
    def check(pairs: list[tuple[str, Any]]) -> None:
        _check_once([name for name, _ in pairs])

    with contextlib.suppress(ValueError, RecursionError):
        json.loads(body, object_pairs_hook=check)


def _check_once(names: list[str]) -> None:
    if len(set(names)) < len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise ApiError(400, f"{twice}: send it once", param=twice, code="too_many")


async def known_query_params(request: Request) -> None:
    """Refuse a query parameter that the route does not know, or one sent twice."""
    route: APIRoute = request.scope["route"]
    known: list[str] = []
    for field in route.dependant.query_params:
        model = field.field_info.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            known += model.model_fields
        else:
            known.append(field.alias)
    for name in request.query_params:
        if name not in known:
            what = f"there is {', '.join(known)}" if known else "there are none here"
            raise ApiError(
                400, f"{name}: there is no such query parameter; {what}",
                param=name, code="extra_forbidden",
            )  # fmt: skip
    _check_once([name for name, _ in request.query_params.multi_items()])
