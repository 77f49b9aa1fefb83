"""OpenAI's images API (``/v1/images/…``), for its stock client: drawing and completing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request, Response

from scanline.service.api.dependencies import (
    COMMON_DEPENDENCIES,
    Server,
    choose_seed,
    find_model,
    find_model_with_capacity,
    resolve_sampling,
)
from scanline.service.api.submission import IdempotencyKey, request_key, submit_generation
from scanline.service.engine.generation import Generation, GenerationSpec
from scanline.service.engine.idempotency import RequestKey
from scanline.service.engine.protocol import EngineProtocol
from scanline.service.http.errors import error_responses
from scanline.service.http.negotiation import GENERATION_HEADERS, generation_headers, json_response
from scanline.service.http.sse import stream_response
from scanline.service.http.waiting import (
    WaitingClient,
    incomplete_error,
    wait_for_result,
    watch_client,
)
from scanline.service.openai.edits import Edit, read_canvas, read_edit
from scanline.service.openai.events import EVENT_STREAM, Kind, stream_images
from scanline.service.openai.prompts import parse_prompt
from scanline.service.openai.rendering import Rendering, choose_rendering
from scanline.service.openai.replies import ImagesReply
from scanline.service.openai.requests import GenerationsRequest, ImageOptions, edits_body
from scanline.service.state import AppState

router = APIRouter(prefix="/v1/images", dependencies=COMMON_DEPENDENCIES)
_REPLIES: dict[int | str, dict[str, Any]] = error_responses(
    403, 404, 413, 415, 422, 429, 500, 503
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
    server: Server,
    body: GenerationsRequest,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Draw images as OpenAI's API does; the prompt names a class, or is empty for anything."""
    engine, rendering, spec = _resolve(request, server, body, idempotency_key)
    key = request_key(request, idempotency_key, engine, spec, body.seed)
    return await _draw(request, server, engine, spec, body, "image_generation", rendering, key)


@router.post(
    "/edits", tags=["openai"], response_model=ImagesReply, responses=_REPLIES,
    openapi_extra=edits_body(), operation_id="edit_image",
)  # fmt: skip
async def create_edit(
    request: Request, server: Server, idempotency_key: IdempotencyKey = None
) -> Response:
    """Complete a picture as OpenAI's API does: paint where the mask is transparent (alpha 0).

    Without a mask, where the picture itself is. The model draws in raster order: what is known
    below and to the right of a painted pixel is kept, but does not guide it.
    """
    edit: Edit = await read_edit(request)
    body = edit.options
    engine, rendering, spec = _resolve(request, server, body, idempotency_key)
    async with watch_client(request) as client:
        read = (read_canvas, edit, engine.config)
        canvas, known = await server.upload_pool.run(client, *read)
    spec = replace(spec, canvas=canvas, known=known)
    key = request_key(request, idempotency_key, engine, spec, body.seed)
    return await _draw(request, server, engine, spec, body, "image_edit", rendering, key)


# --- from the request ---------------------------------------------------------------------------


def _resolve(
    request: Request, server: AppState, body: ImageOptions, key: str | None
) -> tuple[EngineProtocol, Rendering, GenerationSpec]:
    """Find the model that the prompt is for, and choose what it is to draw and how it is shown."""
    if body.model is not None or not server.models:
        find_model(server, body.model)  # or say that there is none
    named = [body.model] if body.model is not None else list(server.models)
    configs = {name: server.models[name].engine.config for name in named}
    model, label = parse_prompt(body.prompt, configs)
    loaded = find_model_with_capacity(request, server, model, body.n or 1, key)
    params = resolve_sampling(server, loaded, label, body.top_p, body.guidance)
    spec = GenerationSpec(
        n=body.n or 1,
        seed=choose_seed(body.seed),
        temperature=1.0 if body.temperature is None else body.temperature,
        **params._asdict(),
    )
    return loaded.engine, choose_rendering(body, loaded.engine.config), spec


# --- to the reply -------------------------------------------------------------------------------


async def _draw(
    request: Request,
    server: AppState,
    engine: EngineProtocol,
    spec: GenerationSpec,
    body: ImageOptions,
    kind: Kind,
    rendering: Rendering,
    key: RequestKey | None,
) -> Response:
    generation = submit_generation(request, server, engine, spec, key)
    # Nobody can come back for the reply, unless the request has a name.
    grace = 0 if key is None else None
    if body.stream:

        def events(client: WaitingClient) -> AsyncIterator[bytes]:
            pool = server.encode_pool_for(rendering.pixels)
            looks = body.partial_images or 0
            return stream_images(generation, client, kind, rendering, looks, pool)

        return stream_response(
            request, engine, generation, events, server.stream_pacer, grace=grace
        )
    await wait_for_result(request, engine, generation, grace=grace)
    if failed := incomplete_error(generation):
        raise failed
    config = generation.config
    pool = server.encode_pool_for(rendering.pixels)
    files: list[str] = []
    async with watch_client(request) as client:
        for image in generation.images:
            pixels = image.read(0, config.pixels)
            files.append(await pool.run(client, rendering.encode, pixels, config))
        return await server.encode_pool.run(client, _reply, generation, rendering, files)


def _reply(generation: Generation, rendering: Rendering, files: list[str]) -> Response:
    return json_response(
        ImagesReply.of(generation, rendering, files), generation_headers(generation)
    )
