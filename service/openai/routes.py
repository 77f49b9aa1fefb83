"""OpenAI's images API (``/v1/images/…``), for its stock client: drawing and completing."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, StreamingResponse

from scanline.model.config import ModelConfig
from scanline.service import generation as work
from scanline.service.api.routes import SSE_HEADERS
from scanline.service.api.schemas import ERRORS
from scanline.service.engine import Engine
from scanline.service.generation import Generation
from scanline.service.http.calls import (
    Server,
    bearer,
    choose_seed,
    client_of,
    draw_to_end,
    find_engine,
    queue_errors,
)
from scanline.service.http.errors import ApiError
from scanline.service.http.events import ClientGoneError
from scanline.service.openai.edits import Edit, read_canvas, read_edit
from scanline.service.openai.reply import Form, Kind, images_json, stream_images
from scanline.service.openai.schemas import (
    GenerationsRequest,
    ImageOptions,
    ImagesReply,
    edits_body,
)
from scanline.service.pictures import PictureError

MAX_SIDE = 2048  # of an enlarged image
_NO_EFFECT = {
    "quality": "an image has the one quality that its model gives it",
    "style": "an image has the one style that its model learnt",
    "moderation": "there is nothing to moderate in a class of the model",
    "user": "requests are not told apart by user",
    "safety_identifier": "requests are not told apart by user",
    "input_fidelity": "what is not to be painted is kept exactly",
}

router = APIRouter(prefix="/v1/images", dependencies=[Depends(bearer)], responses=ERRORS)
_REPLIES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The images; with `stream`, events `….partial_image` and `….completed`.",
        "content": {"text/event-stream": {}},
    }
}


@router.post(
    "/generations", tags=["openai"], response_model=ImagesReply, responses=_REPLIES,
    operation_id="create_image",
)  # fmt: skip
async def create_generation(request: Request, server: Server, body: GenerationsRequest) -> Response:
    """Draw images as OpenAI's API does; the prompt names a class, or is empty for anything."""
    engine = find_engine(server, body.model, body.n or 1)
    config = engine.decoder.config
    form = _form("image_generation", body, config)
    return await _draw(request, engine, _wanted(body, config), form, body)


@router.post(
    "/edits", tags=["openai"], response_model=ImagesReply, responses=_REPLIES,
    openapi_extra=edits_body(), operation_id="edit_image",
)  # fmt: skip
async def create_edit(request: Request, server: Server) -> Response:
    """Complete a picture as OpenAI's API does: paint where the mask is transparent (alpha 0).

    Without a mask, where the picture itself is. The model draws in raster order: what is known
    below and to the right of a painted pixel is kept, but does not guide it.
    """
    edit: Edit = await read_edit(request)
    body = edit.options
    engine = find_engine(server, body.model, body.n or 1)
    config = engine.decoder.config
    form = _form("image_edit", body, config)
    wanted = _wanted(body, config)
    try:
        canvas, known = await run_in_threadpool(read_canvas, edit, config)
    except PictureError as error:
        raise ApiError(400, str(error), param=error.param, code="invalid_image") from None
    wanted = replace(wanted, canvas=canvas, known=known)
    return await _draw(request, engine, wanted, form, body)


# --- from the request ---------------------------------------------------------------------------


def _wanted(body: ImageOptions, config: ModelConfig) -> work.Request:
    return work.Request(
        n=body.n or 1,
        seed=choose_seed(body.seed),
        label=_label(body.prompt, config),
        temperature=1.0 if body.temperature is None else body.temperature,
    )


def _label(prompt: str, config: ModelConfig) -> int:
    """Find the class that a prompt names: its name or number, "a", "an" or "the" before it."""
    wish = prompt.strip().rstrip(".!").lower()
    article, _, rest = wish.partition(" ")
    names = [wish, rest] if article in ("a", "an", "the") else [wish]
    for name in names:
        with contextlib.suppress(ValueError):
            return config.class_number(name or None)
    known = f"a class ({', '.join(config.classes)}), or nothing" if config.classes else "nothing"
    raise ApiError(
        400,
        f"prompt: this model understands no sentences; name {known}, for anything it can draw",
        param="prompt",
        code="unknown_class",
    )


def _form(kind: Kind, body: ImageOptions, config: ModelConfig) -> Form:
    """Settle what the images look like; refuse what cannot be, and note what has no effect."""
    if body.response_format == "url":
        raise ApiError(
            400, "response_format: images are not kept under a URL here; ask for b64_json",
            param="response_format", code="unsupported",
        )  # fmt: skip
    if body.background == "transparent":
        raise ApiError(
            400, "background: the model draws every pixel, so nothing is transparent; leave it out",
            param="background", code="unsupported",
        )  # fmt: skip
    warnings = [
        f"{name}: no effect, {why}"
        for name, why in _NO_EFFECT.items()
        if getattr(body, name, None) not in (None, "auto")
    ]
    kind_of_file = body.output_format or "png"
    if body.output_compression is not None and kind_of_file == "png":
        warnings.append("output_compression: no effect, a PNG loses nothing; see output_format")
    if body.partial_images and not body.stream:
        warnings.append("partial_images: no effect without stream")
    quality = None if kind_of_file == "png" else body.output_compression
    return Form(kind, _scale(body.size, config), kind_of_file, quality, warnings)


def _scale(size: str | None, config: ModelConfig) -> int:
    if size in (None, "auto"):
        return 1
    for scale in range(1, MAX_SIDE // max(config.width, config.height) + 1):
        if size == f"{config.width * scale}x{config.height * scale}":
            return scale
    w, h = config.width, config.height
    raise ApiError(
        400,
        f"size: this model draws {w}x{h}; ask for that, for auto, or for a whole multiple such as "
        f"{10 * w}x{10 * h} (at most {MAX_SIDE} a side), which enlarges its pixels",
        param="size",
        code="unsupported",
    )


# --- to the reply -------------------------------------------------------------------------------


async def _draw(
    request: Request, engine: Engine, wanted: work.Request, form: Form, body: ImageOptions
) -> Response:
    if body.stream:
        with queue_errors():
            generation = engine.queue.submit(wanted)
        events = _events(request, engine, generation, form, body.partial_images or 0)
        headers = SSE_HEADERS | {"X-Generation-ID": generation.id}
        return StreamingResponse(events, media_type="text/event-stream", headers=headers)
    generation = await draw_to_end(request, engine, wanted)
    headers = {"X-Generation-ID": generation.id}
    return JSONResponse(await run_in_threadpool(images_json, generation, form), headers=headers)


async def _events(
    request: Request, engine: Engine, generation: Generation, form: Form, partials: int
) -> AsyncIterator[bytes]:
    with engine.queue.reading(generation, grace=0), contextlib.suppress(ClientGoneError):
        async with client_of(request) as gone:
            async for event in stream_images(generation, gone, form, partials):
                yield event
