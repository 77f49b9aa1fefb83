"""Routes of the OpenAI-compatible API: ``/v1/images/generations`` and ``/v1/images/edits``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request, Response

from scanline.service.api.dependencies import COMMON_DEPENDENCIES, AppStateDep, find_model
from scanline.service.api.generation_reply import GENERATION_HEADERS, generation_headers
from scanline.service.api.submission import (
    IdempotencyKey,
    build_spec,
    check_capacity,
    request_key,
    submit_generation,
)
from scanline.service.api.waiting import wait_for_images
from scanline.service.engine.generation import Generation, GenerationSpec
from scanline.service.errors import error_responses
from scanline.service.http.disconnect import WaitingClient, watch_client
from scanline.service.http.forms import FormRoute
from scanline.service.http.responses import json_response
from scanline.service.http.sse import stream_response
from scanline.service.openai.edits import Edit, read_canvas, read_edit
from scanline.service.openai.events import EVENT_STREAM, Kind, stream_images
from scanline.service.openai.prompts import parse_prompt
from scanline.service.openai.rendering import Rendering, choose_rendering
from scanline.service.openai.replies import ImagesReply
from scanline.service.openai.requests import GenerationsRequest, ImageOptions, edits_body
from scanline.service.state.app_state import AppState
from scanline.service.state.registry import LoadedModel

router = APIRouter(prefix="/v1/images", dependencies=COMMON_DEPENDENCIES, route_class=FormRoute)
_REPLIES: dict[int | str, dict[str, Any]] = error_responses(
    403, 404, 409, 413, 415, 422, 429, 500, 503
) | {
    200: {
        "description": "The images; with `stream`, events `….partial_image` and `….completed`.",
        "content": EVENT_STREAM,
        "headers": GENERATION_HEADERS,
    }
}


@router.post(
    "/generations", tags=["openai"], response_model=ImagesReply, responses=_REPLIES,
    operation_id="create_image",
)  # fmt: skip
async def create_generation(
    request: Request,
    app_state: AppStateDep,
    body: GenerationsRequest,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Draw images. The prompt names a class, or is empty."""
    loaded, rendering, spec = _resolve(request, app_state, body, idempotency_key)
    return await _draw(
        request, app_state, loaded, spec, body, "image_generation", rendering, idempotency_key
    )


@router.post(
    "/edits", tags=["openai"], response_model=ImagesReply, responses=_REPLIES,
    openapi_extra=edits_body(), operation_id="edit_image",
)  # fmt: skip
async def create_edit(
    request: Request, app_state: AppStateDep, idempotency_key: IdempotencyKey = None
) -> Response:
    """Complete a picture: draw the transparent pixels (alpha 0) of the mask.

    Without a mask, the transparent pixels of the picture itself are drawn. The model draws in
    raster order: known pixels after a drawn one are kept, but do not influence it.
    """
    edit: Edit = await read_edit(request)
    body = edit.options
    loaded, rendering, spec = _resolve(request, app_state, body, idempotency_key)
    read = (read_canvas, edit, loaded.engine.config)
    canvas, known, warnings = await app_state.upload_pool.run_for(request, *read)
    spec = replace(spec, canvas=canvas, known=known)
    rendering = replace(rendering, warnings=rendering.warnings + warnings)
    return await _draw(
        request, app_state, loaded, spec, body, "image_edit", rendering, idempotency_key
    )


# --- Requests -----------------------------------------------------------------------------------


def _resolve(
    request: Request, app_state: AppState, body: ImageOptions, key: str | None
) -> tuple[LoadedModel, Rendering, GenerationSpec]:
    """Find the model that the prompt names, and build the spec and the rendering."""
    first = find_model(app_state, body.model)  # raises ApiError if there is no such model
    models = app_state.models if body.model is None else {body.model: first}
    model, label = parse_prompt(
        body.prompt, {name: one.engine.config for name, one in models.items()}
    )
    loaded = models[model]
    check_capacity(request, app_state, loaded, body.n or 1, key)
    options = body.sampling_options(label=label)
    spec = build_spec(app_state, loaded, options, n=body.n or 1, seed=body.seed)
    return loaded, choose_rendering(body, loaded.engine.config), spec


# --- Replies ------------------------------------------------------------------------------------


async def _draw(
    request: Request,
    app_state: AppState,
    loaded: LoadedModel,
    spec: GenerationSpec,
    body: ImageOptions,
    kind: Kind,
    rendering: Rendering,
    idempotency_key: str | None,
) -> Response:
    """Submit a generation, and reply with its stream or its images."""
    key = request_key(request, idempotency_key, loaded.engine, spec, body.seed)
    queue, generation = submit_generation(request, app_state, loaded, spec, key)
    # Without a key, no later request can read this generation: cancel it if the client disconnects.
    grace = 0 if key is None else None
    if body.stream:

        def events(client: WaitingClient) -> AsyncIterator[bytes]:
            pool = app_state.encode_pool_for(rendering.pixels)
            partials = body.partial_images or 0
            return stream_images(generation, client, kind, rendering, partials, pool)

        return stream_response(
            request,
            events,
            app_state.metrics.open_streams,
            queue.reading(generation, grace),
            generation_headers(generation),
        )
    await wait_for_images(request, queue, generation, grace=grace)
    pool = app_state.encode_pool_for(rendering.pixels)
    files: list[str] = []
    async with watch_client(request) as client:
        for image in generation.images:
            file = await pool.run(client, rendering.encode_image, generation, image)
            files.append(file)
        return await app_state.encode_pool.run(client, _reply, generation, rendering, files)


def _reply(generation: Generation, rendering: Rendering, files: list[str]) -> Response:
    return json_response(
        ImagesReply.of(generation, rendering, files), generation_headers(generation)
    )
