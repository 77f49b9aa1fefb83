"""Corrections of FastAPI's OpenAPI schema, so that it describes this server exactly."""

from __future__ import annotations

import re
from typing import Any

from fastapi import FastAPI
from pydantic import TypeAdapter

from scanline.model.noise import MAX_SEED
from scanline.service.api.event_schemas import EVENTS
from scanline.service.http.sse import schema_ref
from scanline.service.openai.events import EVENTS as OPENAI_EVENTS

_REQUEST_ID = {
    "description": "The request's id: yours, if you sent one.",
    "schema": {"type": "string"},
}


def customize_openapi(app: FastAPI, has_key: bool, max_images: int) -> None:
    """Correct the schema at ``/openapi.json``.

    Adds the models of events, the header ``X-Request-ID``, the exact limits, and a summary of each
    operation: the first sentence of its description. Removes FastAPI's
    422 replies, and the API key if the server requires none.

    Args:
        app: The application.
        has_key: Whether the server requires an API key.
        max_images: The largest ``n`` of a request.
    """
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        schema = generate()
        components = schema.setdefault("components", {})
        models = components.setdefault("schemas", {})
        for name in ("HTTPValidationError", "ValidationError"):
            models.pop(name, None)
        for name, model in _event_models().items():
            models.setdefault(name, model)
        if not has_key:
            components.pop("securitySchemes", None)
        for path in schema["paths"].values():
            for operation in path.values():
                operation["summary"] = _first_sentence(operation["description"])
                replies = operation["responses"]
                if "HTTPValidationError" in str(replies.get("422")):
                    del replies["422"]
                replies.pop("403" if has_key else "401", None)
                if not has_key:
                    operation.pop("security", None)
                for reply in replies.values():
                    reply["headers"] = reply.get("headers", {}) | {"X-Request-ID": _REQUEST_ID}
        _set_limits(schema, max_images)
        return schema

    app.openapi = openapi  # type: ignore[method-assign]


def _first_sentence(text: str) -> str:
    """Return the first sentence of a description on one line, without full stop and backquotes."""
    return re.split(r"\.(?:\s|$)", " ".join(text.split()), maxsplit=1)[0].replace("`", "")


def _set_limits(part: Any, max_images: int) -> None:
    """Set the largest seed and the largest ``n`` in a part of the schema.

    FastAPI writes the largest seed as a float, which is one too large.
    """
    if isinstance(part, list):
        for item in part:
            _set_limits(item, max_images)
    if not isinstance(part, dict):
        return
    if part.get("maximum") == float(MAX_SEED):
        part["maximum"] = MAX_SEED
    properties = part.get("properties")
    n = properties.get("n") if isinstance(properties, dict) else None
    for member in (n, *n.get("anyOf", ())) if isinstance(n, dict) else ():
        if member.get("minimum") == 1:
            member["maximum"] = max_images
    for item in part.values():
        _set_limits(item, max_images)


def _event_models() -> dict[str, Any]:
    adapters = {s: TypeAdapter[Any](s) for s in (*EVENTS.values(), *OPENAI_EVENTS.values())}
    inputs = [(shape, "serialization", adapter) for shape, adapter in adapters.items()]
    _, schema = TypeAdapter.json_schemas(inputs, ref_template=schema_ref("{model}"))  # type: ignore[arg-type]
    models: dict[str, Any] = schema["$defs"]
    return models
