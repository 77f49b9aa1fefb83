"""JSON replies."""

from __future__ import annotations

from fastapi import Response
from pydantic import BaseModel


def json_response(
    body: BaseModel, headers: dict[str, str] | None = None, status: int = 200
) -> Response:
    """Return a model as JSON, without FastAPI's second validation."""
    return Response(body.model_dump_json(), status, headers, "application/json")
