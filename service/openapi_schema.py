"""The schema at ``/openapi.json``: what this server does, and nothing that it never does."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import TypeAdapter

from scanline.model.noise import MAX_SEED
from scanline.service.api.events import EVENTS
from scanline.service.http.sse import schema_ref
from scanline.service.openai.events import EVENTS as OPENAI_EVENTS

_REQUEST_ID = {"description": "Yours, if you sent one.", "schema": {"type": "string"}}


def customize_openapi(app: FastAPI, has_key: bool, max_images: int) -> None:
    """Add events, headers and bounds; take out FastAPI's 422, and the key where none is wanted.

    A request may ask for ``max_images``.
    """
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        schema = generate()
        components = schema.setdefault("components", {})
        shapes = components.setdefault("schemas", {})
        for name in ("HTTPValidationError", "ValidationError"):
            shapes.pop(name, None)
        for name, shape in _events().items():
            shapes.setdefault(name, shape)
        if not has_key:
            components.pop("securitySchemes", None)
        for path in schema["paths"].values():
            for operation in path.values():
                replies = operation["responses"]
                if "HTTPValidationError" in str(replies.get("422")):
                    del replies["422"]
                replies.pop("403" if has_key else "401", None)
                if not has_key:
                    operation.pop("security", None)
                for reply in replies.values():
                    reply["headers"] = reply.get("headers", {}) | {"X-Request-ID": _REQUEST_ID}
        _bound(schema, max_images)
        return schema

    app.openapi = openapi  # type: ignore[method-assign]


def _bound(part: Any, max_images: int) -> None:
    """Set the largest seed, which FastAPI gives as a float that is one more, and the largest n."""
    if isinstance(part, list):
        for one in part:
            _bound(one, max_images)
    if not isinstance(part, dict):
        return
    if part.get("maximum") == float(MAX_SEED):
        part["maximum"] = MAX_SEED
    properties = part.get("properties")
    count = properties.get("n") if isinstance(properties, dict) else None
    for one in (count, *count.get("anyOf", ())) if isinstance(count, dict) else ():
        if one.get("minimum") == 1:
            one["maximum"] = max_images
    for one in part.values():
        _bound(one, max_images)


def _events() -> dict[str, Any]:
    adapters = {s: TypeAdapter[Any](s) for s in (*EVENTS.values(), *OPENAI_EVENTS.values())}
    inputs = [(shape, "serialization", adapter) for shape, adapter in adapters.items()]
    _, schema = TypeAdapter.json_schemas(inputs, ref_template=schema_ref("{model}"))  # type: ignore[arg-type]
    shapes: dict[str, Any] = schema["$defs"]
    return shapes
