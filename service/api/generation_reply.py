"""Replies with a generation: JSON, files, or a stream of events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from scanline.service.api.cursors import Cursor
from scanline.service.api.event_schemas import EVENT_STREAM
from scanline.service.api.events import stream_events
from scanline.service.api.media import (
    GENERATION_HEADERS,
    MEDIA_TYPES,
    MediaType,
    generation_headers,
)
from scanline.service.api.replies import GenerationReply
from scanline.service.api.requests import Granularity, Output
from scanline.service.engine.generation import Generation
from scanline.service.engine.queue import QueuedGeneration
from scanline.service.errors import incomplete_error
from scanline.service.http.disconnect import WaitingClient
from scanline.service.http.responses import json_response
from scanline.service.http.sse import stream_response
from scanline.service.images import to_npy, to_zip
from scanline.service.recipes.png_encoding import encode_grid, encode_image
from scanline.service.state.app_state import AppState

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
        app_state.stream_pacer,
        queue.reading(generation),
        generation_headers(generation),
        resumable=True,
    )
