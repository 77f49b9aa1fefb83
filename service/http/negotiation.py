"""Which form a reply takes (JSON, PNG, ZIP, a NumPy array or events), and how it names itself."""

from __future__ import annotations

import re
from typing import Any, Literal, get_args

from fastapi import Request, Response
from pydantic import BaseModel

from scanline.service.engine.generation import Generation
from scanline.service.http.errors import ApiError

MediaType = Literal[
    "application/json", "image/png", "application/zip", "application/x-npy", "text/event-stream"
]
MEDIA_TYPES: tuple[MediaType, ...] = get_args(MediaType)

_QUALITY = re.compile(r"0(\.\d*)?|1(\.0*)?")
# What the headers of ``naming`` are, for the schema.
GENERATION_HEADERS: dict[str, Any] = {
    "X-Generation-ID": {"description": "The generation.", "schema": {"type": "string"}},
    "X-Seed": {"description": "Of the first image.", "schema": {"type": "integer"}},
}


def negotiate_media_type(
    request: Request, stream: bool, given: set[str], *, stream_given: bool = False
) -> MediaType:
    """Choose the reply's media type, and refuse fields that would mean nothing in it.

    ``stream_given`` says that ``stream`` was sent, and not left out.
    """
    media: MediaType = "text/event-stream" if stream else _acceptable(request)
    if stream_given and not stream and media == "text/event-stream":
        raise ApiError(
            400, f"stream is false, and Accept asks for {media}: leave one out",
            param="stream", code="unsupported",
        )  # fmt: skip
    if "granularity" in given and media != "text/event-stream":
        raise ApiError(
            400, "granularity is about streams: leave it out, or set stream to true",
            param="granularity", code="unsupported",
        )  # fmt: skip
    if "output" in given and media in ("image/png", "application/zip", "application/x-npy"):
        raise ApiError(
            400, f"output is about JSON and streams, and Accept asks for {media}: leave one out",
            param="output", code="unsupported",
        )  # fmt: skip
    return media


def _acceptable(request: Request) -> MediaType:
    """Choose what `Accept` likes best, the first it names of several (RFC 9110, section 12.5.1).

    What it says of a media type is what it says the most particularly.
    """
    accept = ", ".join(request.headers.getlist("accept"))
    wishes: dict[str, float] = {}
    for part in accept.split(","):
        kind, *parameters = (piece.strip().lower() for piece in part.split(";"))
        quality = next((p[2:] for p in parameters if p.startswith("q=")), "1")
        if kind:
            wishes[kind] = float(quality) if _QUALITY.fullmatch(quality) else 0.0
    wishes = wishes or {"*/*": 1.0}
    named = list(wishes)

    def liked(media: MediaType) -> tuple[float, int]:
        ways = (media, f"{media.partition('/')[0]}/*", "*/*")
        way = next((way for way in ways if way in wishes), None)
        return (0.0, 0) if way is None else (wishes[way], -named.index(way))

    best = max(MEDIA_TYPES, key=liked)
    if not liked(best)[0]:
        raise ApiError(
            406, f"nothing here is {accept}; accept one of {', '.join(MEDIA_TYPES)}",
            param="accept", code="not_acceptable",
        )  # fmt: skip
    return best


def generation_headers(generation: Generation) -> dict[str, str]:
    """Give the headers of a generation's replies: its name and the first image's seed."""
    return {"X-Generation-ID": generation.id, "X-Seed": str(generation.spec.seed)}


def json_response(
    body: BaseModel, headers: dict[str, str] | None = None, status: int = 200
) -> Response:
    """Reply with a model as JSON: it was validated when it was built, and need not be again."""
    return Response(body.model_dump_json(), status, headers, "application/json")
