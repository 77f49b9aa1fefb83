"""Replies with a generation, by media type: JSON, files, or a stream of events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal, get_args

from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from scanline.service.api.cursors import Cursor
from scanline.service.api.event_schemas import EVENT_STREAM
from scanline.service.api.events import stream_events
from scanline.service.api.replies import GenerationReply
from scanline.service.api.requests import Granularity, Output
from scanline.service.engine.generation import Generation
from scanline.service.engine.queue import QueuedGeneration
from scanline.service.errors import incomplete_error
from scanline.service.http.disconnect import WaitingClient
from scanline.service.http.errors import ApiError
from scanline.service.http.negotiation import best_media_type
from scanline.service.http.responses import json_response
from scanline.service.http.sse import stream_response
from scanline.service.images import to_npy, to_zip
from scanline.service.recipes.png_encoding import encode_grid, encode_image
from scanline.service.state.app_state import AppState

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


IMAGES_RESPONSE: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The images, in the form selected by `Accept` or `stream`.",
        "content": {kind: {} for kind in MEDIA_TYPES[1:]} | EVENT_STREAM,
        "headers": GENERATION_HEADERS,
    },
}


def json_reply(
    generation: Generation,
    output: Output = "png",
    headers: dict[str, str] | None = None,
    status: int = 200,
) -> Response:
    """Reply with a generation as JSON."""
    return json_response(GenerationReply.of(generation, output), headers, status)


def encode_generation(generation: Generation, media: MediaType, output: Output) -> Response:
    """Encode a generation as a media type; raises ``ApiError`` if it has no files."""
    config = generation.config
    headers = generation_headers(generation)
    if media == "application/json":
        return json_reply(generation, output, headers)
    if error := incomplete_error(generation):
        raise error
    if media == "application/x-npy":
        images = [image.read(0, config.pixels) for image in generation.images]
        return Response(to_npy(images, config), media_type=media, headers=headers)
    if media == "image/png":
        png = encode_grid(generation)
        return Response(png, media_type=media, headers=headers)
    files = [
        (f"{image.index:04d}-seed-{image.seed}.png", encode_image(generation, image))
        for image in generation.images
    ]
    return Response(to_zip(files), media_type=media, headers=headers)


def stream_generation(
    request: Request,
    app_state: AppState,
    queued: QueuedGeneration,
    granularity: Granularity,
    resumed: list[Cursor] | None,
    output: Output,
) -> StreamingResponse:
    """Reply with a generation's events."""
    queue, generation = queued

    def events(client: WaitingClient) -> AsyncIterator[bytes]:
        return stream_events(
            generation,
            client,
            app_state.stream_pacer,
            app_state.encode_pool_for(generation.config.pixels),
            granularity=granularity,
            resumed=resumed,
            output=output,
            estimate_wait=lambda: queue.estimate_wait(generation),
        )

    return stream_response(
        request,
        events,
        app_state.metrics.open_streams,
        queue.reading(generation),
        generation_headers(generation),
        resumable=True,
    )
