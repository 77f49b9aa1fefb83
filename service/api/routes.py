"""Routes of the API under ``/v1`` that draw images, read generations, and list models."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Form, Header, Request, Response
from fastapi.responses import StreamingResponse

from scanline.service.api.cursors import END_ID, Cursor, parse_cursors
from scanline.service.api.dependencies import (
    COMMON_DEPENDENCIES,
    AppStateDep,
    find_model,
    find_model_with_capacity,
)
from scanline.service.api.events import EVENT_STREAM, stream_events
from scanline.service.api.media import (
    GENERATION_HEADERS,
    MEDIA_TYPES,
    MediaType,
    generation_headers,
    negotiate_media_type,
)
from scanline.service.api.replies import GenerationReply, ModelList, ModelReply
from scanline.service.api.requests import (
    CompletionForm,
    DrawRequest,
    Granularity,
    Output,
    SampleRequest,
)
from scanline.service.api.specs import build_spec
from scanline.service.api.submission import (
    Background,
    IdempotencyKey,
    request_key,
    submit_generation,
)
from scanline.service.api.waiting import wait_for_result, wait_until_finished
from scanline.service.engine.generation import Generation, GenerationSpec
from scanline.service.engine.idempotency import RequestKey
from scanline.service.engine.protocol import EngineProtocol
from scanline.service.errors import error_responses, incomplete_error
from scanline.service.http.bodies import unique_form_fields
from scanline.service.http.disconnect import WaitingClient, watch_client
from scanline.service.http.errors import RETRY_SOON, ApiError
from scanline.service.http.responses import json_response
from scanline.service.http.sse import stream_response
from scanline.service.images import read_masked_image, to_grid, to_npy, to_png, to_zip
from scanline.service.state import AppState, LoadedModel

router = APIRouter(prefix="/v1", dependencies=COMMON_DEPENDENCIES)
_LOCATION = {"description": "URL of the generation.", "schema": {"type": "string"}}
_IMAGES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The images, in the form selected by `Accept` or `stream`.",
        "content": {kind: {} for kind in MEDIA_TYPES[1:]} | EVENT_STREAM,
        "headers": GENERATION_HEADERS,
    },
}
_REPLIES = (
    error_responses(403, 404, 406, 413, 415, 422, 429, 500, 503)
    | _IMAGES
    | {
        202: {
            "description": "Accepted, with `Prefer: respond-async`.",
            "model": GenerationReply,
            "headers": GENERATION_HEADERS | {"Location": _LOCATION},
        },
    }
)


@router.post("/samples", tags=["draw"], response_model=GenerationReply, responses=_REPLIES)
async def create_samples(
    request: Request,
    app_state: AppStateDep,
    body: SampleRequest,
    background: Background,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Draw images, of one class or of any."""
    reply_format = _reply_format(request, body)
    loaded, spec = _resolve(request, app_state, body, idempotency_key)
    key = request_key(request, idempotency_key, loaded.engine, spec, body.seed)
    return await _draw(request, app_state, loaded.engine, spec, reply_format, background, key)


@router.post(
    "/completions", tags=["draw"], response_model=GenerationReply, responses=_REPLIES,
    dependencies=[Depends(unique_form_fields())],
)  # fmt: skip
async def create_completions(
    request: Request,
    app_state: AppStateDep,
    form: Annotated[CompletionForm, Form(media_type="multipart/form-data")],
    background: Background,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Complete a picture.

    The unknown part lies below `known_rows`, or is transparent in `mask`, or in the picture itself.
    """
    reply_format = _reply_format(request, form)
    loaded, spec = _resolve(request, app_state, form, idempotency_key)
    async with watch_client(request) as client:
        canvas, known = await app_state.upload_pool.run(
            client,
            read_masked_image,
            form.image.file,
            form.mask.file if form.mask else None,
            form.known_rows,
            form.fit,
            loaded.engine.config,
        )
    spec = replace(spec, canvas=canvas, known=known)
    key = request_key(request, idempotency_key, loaded.engine, spec, form.seed)
    return await _draw(request, app_state, loaded.engine, spec, reply_format, background, key)


@router.get(
    "/generations/{identifier}", tags=["draw"], response_model=GenerationReply,
    responses=error_responses(404, 406, 409, 500, 503) | _IMAGES,
)  # fmt: skip
async def get_generation(
    request: Request, app_state: AppStateDep, identifier: str, output: Output = "png"
) -> Response:
    """Return a generation, while it runs and for some minutes afterwards.

    `Accept` selects the form, as for `POST /v1/samples`; files are available once it is finished.
    """
    engine, generation = _find(app_state, identifier)
    media = negotiate_media_type(request, False, {"output"} & request.query_params.keys())
    if media == "text/event-stream":
        return _stream(request, app_state, engine, generation, "auto", None, output)
    if media != "application/json":
        _check_complete(generation)
    async with watch_client(request) as client:
        reply = await app_state.encode_pool.run(client, _reply, generation, media, output)
    reply.headers.update({"Cache-Control": "no-store", "Vary": "Accept"})
    return reply


@router.get(
    "/generations/{identifier}/events",
    tags=["draw"],
    responses=error_responses(404)
    | {
        200: {"description": "Events.", "content": EVENT_STREAM},
        204: {"description": "There are no events after that one."},
    },
    response_class=StreamingResponse,
)
async def get_events(
    request: Request,
    app_state: AppStateDep,
    identifier: str,
    granularity: Granularity = "auto",
    output: Output = "png",
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Stream a generation's events, from the start or after `Last-Event-ID`.

    After the last event the reply is 204, which stops a browser's EventSource from reconnecting.
    """
    engine, generation = _find(app_state, identifier)
    if last_event_id == END_ID:
        return Response(status_code=204)
    cursors = parse_cursors(last_event_id, generation) if last_event_id else None
    return _stream(request, app_state, engine, generation, granularity, cursors, output)


@router.delete(
    "/generations/{identifier}", tags=["draw"], response_model=GenerationReply,
    responses=error_responses(404),
)  # fmt: skip
async def cancel_generation(request: Request, app_state: AppStateDep, identifier: str) -> Response:
    """Cancel a generation. Its pixels so far stay readable. Cancelling it again has no effect."""
    engine, generation = _find(app_state, identifier)
    engine.queue.cancel(generation)
    async with watch_client(request) as client:
        await wait_until_finished(generation, client)
        return await app_state.encode_pool.run(client, _json_reply, generation)


@router.get("/models", tags=["models"], responses=error_responses(503))
async def list_models(app_state: AppStateDep) -> ModelList:
    """List the models, the default first."""
    find_model(app_state, None)  # 503 while they load, because an empty list would mean no models
    return ModelList(data=[ModelReply.of(name, model) for name, model in app_state.models.items()])


@router.get("/models/{name}", tags=["models"], responses=error_responses(404, 503))
async def get_model(app_state: AppStateDep, name: str) -> ModelReply:
    """Describe one model."""
    return ModelReply.of(name, find_model(app_state, name))


# --- Requests -----------------------------------------------------------------------------------


class _ReplyFormat(NamedTuple):
    media: MediaType
    granularity: Granularity
    output: Output


def _reply_format(request: Request, body: DrawRequest) -> _ReplyFormat:
    """Select the reply's form by the `Accept` header and the body."""
    media = negotiate_media_type(
        request,
        body.stream,
        body.non_default_fields,
        stream_given="stream" in body.model_fields_set,
    )
    return _ReplyFormat(media, body.granularity, body.output)


def _resolve(
    request: Request, app_state: AppState, body: DrawRequest, key: str | None
) -> tuple[LoadedModel, GenerationSpec]:
    """Find the model of a request, and build the spec of the images to draw."""
    loaded = find_model_with_capacity(request, app_state, body.model, body.n, key)
    options = body.sampling_options()
    return loaded, build_spec(app_state, loaded, options, n=body.n, seed=body.seed)


def _find(app_state: AppState, identifier: str) -> tuple[EngineProtocol, Generation]:
    """Find a generation by id."""
    for loaded in app_state.models.values():
        if generation := loaded.engine.queue.find(identifier):
            return loaded.engine, generation
    seconds = app_state.settings.keep_seconds
    raise ApiError(
        404,
        f"there is no generation {identifier!r}; finished ones are kept for at most "
        f"{seconds:.0f} s",
        param="identifier",
        code="generation_not_found",
    )


def _check_complete(generation: Generation) -> None:
    """Raise ``ApiError`` if a generation has no files, because it is unfinished or cancelled."""
    if not generation.finished:
        message = "it is still being drawn; try again in a moment, or ask for application/json"
        raise ApiError(409, message, code="not_finished", headers=RETRY_SOON)
    if generation.error is None and incomplete_error(generation):
        message = "it was cancelled; ask for application/json to get the pixels drawn so far"
        raise ApiError(409, message, code="cancelled")


# --- Replies ------------------------------------------------------------------------------------


async def _draw(
    request: Request,
    app_state: AppState,
    engine: EngineProtocol,
    spec: GenerationSpec,
    reply_format: _ReplyFormat,
    background: bool,
    key: RequestKey | None,
) -> Response:
    """Submit a generation, and reply with its stream, its images, or its URL."""
    media, granularity, output = reply_format
    if media == "text/event-stream":
        generation = submit_generation(request, app_state, engine, spec, key)
        return _stream(request, app_state, engine, generation, granularity, None, output)
    if background and engine.queue.limits.keeps_results:  # or nobody could read the result
        generation = submit_generation(request, app_state, engine, spec, key, detached=True)
        headers = {
            "Location": f"{request.scope.get('root_path', '')}/v1/generations/{generation.id}",
            "Preference-Applied": "respond-async",
            **generation_headers(generation),
        }
        async with watch_client(request) as client:
            return await app_state.encode_pool.run(
                client, _json_reply, generation, output, headers, 202
            )
    generation = submit_generation(request, app_state, engine, spec, key)
    # Without a key, no later request can read this generation: cancel it if the client disconnects.
    await wait_for_result(request, engine, generation, grace=0 if key is None else None)
    async with watch_client(request) as client:
        return await app_state.encode_pool.run(client, _reply, generation, media, output)


def _json_reply(
    generation: Generation,
    output: Output = "png",
    headers: dict[str, str] | None = None,
    status: int = 200,
) -> Response:
    return json_response(GenerationReply.of(generation, output), headers, status)


def _reply(generation: Generation, media: MediaType, output: Output) -> Response:
    """Encode a generation as a media type; raises ``ApiError`` if it has no files."""
    config = generation.config
    headers = generation_headers(generation)
    if media == "application/json":
        return _json_reply(generation, output, headers)
    if error := incomplete_error(generation):
        raise error
    images = [image.read(0, config.pixels) for image in generation.images]
    if media == "application/x-npy":
        return Response(to_npy(images, config), media_type=media, headers=headers)
    if media == "image/png":
        png = to_png(images[0], config) if len(images) == 1 else to_grid(images, config)
        return Response(png, media_type=media, headers=headers)
    names = [f"{image.index:04d}-seed-{image.seed}.png" for image in generation.images]
    pngs = [to_png(pixels, config) for pixels in images]
    return Response(to_zip(list(zip(names, pngs, strict=True))), media_type=media, headers=headers)


def _stream(
    request: Request,
    app_state: AppState,
    engine: EngineProtocol,
    generation: Generation,
    granularity: Granularity,
    resumed: list[Cursor] | None,
    output: Output,
) -> StreamingResponse:
    """Reply with a generation's events."""

    def events(client: WaitingClient) -> AsyncIterator[bytes]:
        return stream_events(
            generation,
            client,
            app_state.stream_pacer,
            app_state.encode_pool_for(generation.config.pixels),
            granularity=granularity,
            resumed=resumed,
            output=output,
            estimate_wait=lambda: engine.queue.estimate_wait(generation),
        )

    return stream_response(
        request,
        events,
        app_state.stream_pacer,
        engine.queue.reading(generation),
        generation_headers(generation),
    )
