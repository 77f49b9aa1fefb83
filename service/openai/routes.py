"""OpenAI's images API (``/v1/images/…``), for its stock client: drawing and completing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request, Response

from scanline.service.api.beginning import IdempotencyKey, begin, name_request
from scanline.service.api.lookup import (
    EVERY_ROUTE,
    Server,
    choose_seed,
    find_served,
    find_with_room,
    resolve_sampling,
)
from scanline.service.generation import Generation, Spec
from scanline.service.http.errors import errors
from scanline.service.http.media import NAMING, json_reply, naming
from scanline.service.http.sse import stream_reply
from scanline.service.http.waiting import Client, client_of, cut_off, draw_to_end
from scanline.service.openai.edits import Edit, read_canvas, read_edit
from scanline.service.openai.events import EVENT_STREAM, Kind, stream_images
from scanline.service.openai.prompts import understand
from scanline.service.openai.rendering import Rendering, choose_rendering
from scanline.service.openai.replies import ImagesReply
from scanline.service.openai.requests import GenerationsRequest, ImageOptions, edits_body
from scanline.service.repeats import Key
from scanline.service.server import Scanline
from scanline.service.workshop import Workshop

router = APIRouter(prefix="/v1/images", dependencies=EVERY_ROUTE)
_REPLIES: dict[int | str, dict[str, Any]] = errors(403, 404, 413, 415, 422, 429, 500, 503) | {
    200: {
        "description": "The images; with `stream`, events `….partial_image` and `….completed`.",
        "content": EVENT_STREAM,
        "headers": NAMING,
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
    key = name_request(request, idempotency_key, engine, spec, body.seed)
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
    async with client_of(request) as client:
        read = (read_canvas, edit, engine.config)
        canvas, known = await server.reading.run(client, *read)
    spec = replace(spec, canvas=canvas, known=known)
    key = name_request(request, idempotency_key, engine, spec, body.seed)
    return await _draw(request, server, engine, spec, body, "image_edit", rendering, key)


# --- from the request ---------------------------------------------------------------------------


def _resolve(
    request: Request, server: Scanline, body: ImageOptions, key: str | None
) -> tuple[Workshop, Rendering, Spec]:
    """Find the model that the prompt is for, and choose what it is to draw and how it is shown."""
    if body.model is not None or not server.models:
        find_served(server, body.model)  # or say that there is none
    named = [body.model] if body.model is not None else list(server.models)
    configs = {name: server.models[name].engine.config for name in named}
    model, label = understand(body.prompt, configs)
    served = find_with_room(request, server, model, body.n or 1, key)
    params = resolve_sampling(server, served, label, body.top_p, body.guidance)
    spec = Spec(
        n=body.n or 1,
        seed=choose_seed(body.seed),
        temperature=1.0 if body.temperature is None else body.temperature,
        **params._asdict(),
    )
    return served.engine, choose_rendering(body, served.engine.config), spec


# --- to the reply -------------------------------------------------------------------------------


async def _draw(
    request: Request,
    server: Scanline,
    engine: Workshop,
    spec: Spec,
    body: ImageOptions,
    kind: Kind,
    rendering: Rendering,
    key: Key | None,
) -> Response:
    generation = begin(request, server, engine, spec, key)
    # Nobody can come back for the reply, unless the request has a name.
    grace = 0 if key is None else None
    if body.stream:

        def events(client: Client) -> AsyncIterator[bytes]:
            pool = server.pool_for(rendering.pixels)
            looks = body.partial_images or 0
            return stream_images(generation, client, kind, rendering, looks, pool)

        return stream_reply(request, engine, generation, events, server.streams, grace=grace)
    await draw_to_end(request, engine, generation, grace=grace)
    if failed := cut_off(generation):
        raise failed
    config = generation.config
    pool = server.pool_for(rendering.pixels)
    files: list[str] = []
    async with client_of(request) as client:
        for image in generation.images:
            pixels = image.read(0, config.pixels)
            files.append(await pool.run(client, rendering.encode, pixels, config))
        return await server.writing.run(client, _reply, generation, rendering, files)


def _reply(generation: Generation, rendering: Rendering, files: list[str]) -> Response:
    return json_reply(ImagesReply.of(generation, rendering, files), naming(generation))
