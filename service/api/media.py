"""Media types and headers of replies with images."""

from __future__ import annotations

from typing import Any, Literal, get_args

from fastapi import Request

from scanline.service.engine.generation import Generation
from scanline.service.http.errors import ApiError
from scanline.service.http.negotiation import best_media_type

MediaType = Literal[
    "application/json", "image/png", "application/zip", "application/x-npy", "text/event-stream"
]
MEDIA_TYPES: tuple[MediaType, ...] = get_args(MediaType)

# OpenAPI documentation of ``generation_headers``.
GENERATION_HEADERS: dict[str, Any] = {
    "X-Generation-ID": {"description": "The generation.", "schema": {"type": "string"}},
    "X-Seed": {"description": "Seed of the first image.", "schema": {"type": "integer"}},
}


def negotiate_media_type(
    request: Request, stream: bool, fields: set[str], *, stream_given: bool = False
) -> MediaType:
    """Choose the reply's media type, and refuse fields that it would ignore.

    Args:
        request: The request, with its ``Accept`` header.
        stream: Value of the field ``stream``.
        fields: Names of the fields that differ from their defaults.
        stream_given: Whether ``stream`` was sent.

    Raises:
        ApiError: 400 if fields contradict the media type, 406 if none is acceptable.
    """
    media = "text/event-stream" if stream else _accepted_media_type(request)
    if stream_given and not stream and media == "text/event-stream":
        raise ApiError(
            400, f"stream is false, but Accept asks for {media}: leave one out",
            param="stream", code="unsupported",
        )  # fmt: skip
    if "granularity" in fields and media != "text/event-stream":
        raise ApiError(
            400, "granularity applies to streams only: leave it out, or set stream to true",
            param="granularity", code="unsupported",
        )  # fmt: skip
    if "output" in fields and media in ("image/png", "application/zip", "application/x-npy"):
        raise ApiError(
            400,
            f"output applies to JSON and streams only, but Accept asks for {media}: leave one out",
            param="output", code="unsupported",
        )  # fmt: skip
    return media


def _accepted_media_type(request: Request) -> MediaType:
    accept = ", ".join(request.headers.getlist("accept"))
    media = best_media_type(accept, MEDIA_TYPES)
    if media is None:
        raise ApiError(
            406, f"{accept} is not available; accept one of {', '.join(MEDIA_TYPES)}",
            param="accept", code="not_acceptable",
        )  # fmt: skip
    return media


def generation_headers(generation: Generation) -> dict[str, str]:
    """Return the headers that name a generation and its first image's seed."""
    return {"X-Generation-ID": generation.id, "X-Seed": str(generation.spec.seed)}
