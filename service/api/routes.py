"""The API under ``/v1``: a request's body to the engine, and back as JSON, PNG, ZIP, NPY or SSE."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Form, Header, Request, Response
from fastapi.responses import StreamingResponse

from scanline.service.api.cursors import END_ID, Cursor, parse_cursors
from scanline.service.api.dependencies import (
    COMMON_DEPENDENCIES,
    Server,
    choose_seed,
    find_model,
    find_model_with_capacity,
    resolve_sampling,
)
from scanline.service.api.events import EVENT_STREAM, stream_events
from scanline.service.api.replies import GenerationReply, ModelList, ModelReply
from scanline.service.api.requests import CompletionForm, Granularity, Output, SampleRequest
from scanline.service.api.submission import (
    Background,
    IdempotencyKey,
    request_key,
    submit_generation,
)
from scanline.service.engine.generation import Generation, GenerationSpec
from scanline.service.engine.idempotency import RequestKey
from scanline.service.engine.protocol import EngineProtocol
from scanline.service.http.bodies import unique_form_fields
from scanline.service.http.errors import RETRY_SOON, ApiError, error_responses
from scanline.service.http.negotiation import (
    GENERATION_HEADERS,
    MEDIA_TYPES,
    MediaType,
    generation_headers,
    json_response,
    negotiate_media_type,
)
from scanline.service.http.sse import stream_response
from scanline.service.http.waiting import (
    WaitingClient,
    incomplete_error,
    wait_for_result,
    wait_until_finished,
    watch_client,
)
from scanline.service.images import read_masked_image, to_grid, to_npy, to_png, to_zip
from scanline.service.state import AppState

router = APIRouter(prefix="/v1", dependencies=COMMON_DEPENDENCIES)
_LOCATION = {"description": "The generation's address.", "schema": {"type": "string"}}
_IMAGES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The images, in the form that `Accept` (or `stream`) asks for.",
        "content": {kind: {} for kind in MEDIA_TYPES[1:]} | EVENT_STREAM,
        "headers": GENERATION_HEADERS,
    },
}
_REPLIES = (
    error_responses(403, 404, 406, 413, 415, 422, 429, 500, 503)
    | _IMAGES
    | {
        202: {
            "description": "With `Prefer: respond-async`: begun.",
            "model": GenerationReply,
            "headers": GENERATION_HEADERS | {"Location": _LOCATION},
        },
    }
)


@router.post("/samples", tags=["draw"], response_model=GenerationReply, responses=_REPLIES)
async def create_samples(
    request: Request,
    server: Server,
    body: SampleRequest,
    background: Background,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Draw images, of a class or of anything."""
    media = negotiate_media_type(
        request,
        body.stream,
        body.non_default_fields,
        stream_given="stream" in body.model_fields_set,
    )
    loaded = find_model_with_capacity(request, server, body.model, body.n, idempotency_key)
    engine = loaded.engine
    params = resolve_sampling(server, loaded, body.label, body.top_p, body.guidance)
    spec = GenerationSpec(
        n=body.n,
        seed=choose_seed(body.seed),
        temperature=body.temperature,
        **params._asdict(),
    )
    key = request_key(request, idempotency_key, engine, spec, body.seed)
    shown = _Shown(media, body.granularity, body.output)
    return await _draw(request, server, engine, spec, shown, background, key)


@router.post(
    "/completions", tags=["draw"], response_model=GenerationReply, responses=_REPLIES,
    dependencies=[Depends(unique_form_fields())],
)  # fmt: skip
async def create_completions(
    request: Request,
    server: Server,
    form: Annotated[CompletionForm, Form(media_type="multipart/form-data")],
    background: Background,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Complete a picture whose unknown part is below `known_rows`, or transparent.

    Transparent in `mask` if one is sent, else in the picture itself.
    """
    media = negotiate_media_type(
        request,
        form.stream,
        form.non_default_fields,
        stream_given="stream" in form.model_fields_set,
    )
    loaded = find_model_with_capacity(request, server, form.model, form.n, idempotency_key)
    engine = loaded.engine
    params = resolve_sampling(server, loaded, form.label, form.top_p, form.guidance, form.particles)
    async with watch_client(request) as client:
        canvas, known = await server.upload_pool.run(
            client,
            read_masked_image,
            form.image.file,
            form.mask.file if form.mask else None,
            form.known_rows,
            form.fit,
            engine.config,
        )
    spec = GenerationSpec(
        n=form.n,
        seed=choose_seed(form.seed),
        temperature=form.temperature,
        **params._asdict(),
        canvas=canvas,
        known=known,
    )
    key = request_key(request, idempotency_key, engine, spec, form.seed)
    shown = _Shown(media, form.granularity, form.output)
    return await _draw(request, server, engine, spec, shown, background, key)


@router.get(
    "/generations/{identifier}", tags=["draw"], response_model=GenerationReply,
    responses=error_responses(404, 406, 409, 500, 503) | _IMAGES,
)  # fmt: skip
async def get_generation(
    request: Request, server: Server, identifier: str, output: Output = "png"
) -> Response:
    """Look at a generation, while it runs or for some minutes after; as files once it is finished.

    `Accept` chooses the form, as for `POST /v1/samples`.
    """
    engine, generation = _find(server, identifier)
    media = negotiate_media_type(request, False, {"output"} & request.query_params.keys())
    if media == "text/event-stream":
        return _stream(request, server, engine, generation, "auto", None, output)
    if media != "application/json":
        _check_whole(generation)
    async with watch_client(request) as client:
        reply = await server.encode_pool.run(client, _reply, generation, media, output)
    reply.headers.update({"Cache-Control": "no-store", "Vary": "Accept"})
    return reply


@router.get(
    "/generations/{identifier}/events",
    tags=["draw"],
    responses=error_responses(404)
    | {
        200: {"description": "Events.", "content": EVENT_STREAM},
        204: {"description": "None are left after that one."},
    },
    response_class=StreamingResponse,
)
async def get_events(
    request: Request,
    server: Server,
    identifier: str,
    granularity: Granularity = "auto",
    output: Output = "png",
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Read a generation's events from the start, or go on after `Last-Event-ID`.

    After the last event there are none: 204, at which a browser's EventSource stops asking.
    """
    engine, generation = _find(server, identifier)
    if last_event_id == END_ID:
        return Response(status_code=204)
    cursors = parse_cursors(last_event_id, generation) if last_event_id else None
    return _stream(request, server, engine, generation, granularity, cursors, output)


@router.delete(
    "/generations/{identifier}", tags=["draw"], response_model=GenerationReply,
    responses=error_responses(404),
)  # fmt: skip
async def cancel_generation(request: Request, server: Server, identifier: str) -> Response:
    """Cancel a generation; what is drawn already stays readable. Cancelling twice is no error."""
    engine, generation = _find(server, identifier)
    engine.queue.cancel(generation)
    async with watch_client(request) as client:
        await wait_until_finished(generation, client)
        return await server.encode_pool.run(client, _described, generation)


@router.get("/models", tags=["models"], responses=error_responses(503))
async def list_models(server: Server) -> ModelList:
    """List the models, the default first."""
    find_model(server, None)  # or say that they are loading: an empty list would mean none
    return ModelList(data=[ModelReply.of(name, model) for name, model in server.models.items()])


@router.get("/models/{name}", tags=["models"], responses=error_responses(404, 503))
async def get_model(server: Server, name: str) -> ModelReply:
    """Describe one model."""
    return ModelReply.of(name, find_model(server, name))


# --- from the request ---------------------------------------------------------------------------


def _find(server: AppState, identifier: str) -> tuple[EngineProtocol, Generation]:
    for loaded in server.models.values():
        if generation := loaded.engine.queue.find(identifier):
            return loaded.engine, generation
    kept = server.settings.keep_seconds
    raise ApiError(
        404,
        f"there is no generation {identifier!r}; finished ones are kept for at most {kept:.0f} s",
        param="identifier",
        code="generation_not_found",
    )


def _check_whole(generation: Generation) -> None:
    """Raise ``ApiError`` where there are no files to give: as yet, or because it was cancelled."""
    if not generation.finished:
        message = "it is still being drawn; ask again in a moment, or for application/json"
        raise ApiError(409, message, code="not_finished", headers=RETRY_SOON)
    if generation.error is None and incomplete_error(generation):
        message = "the drawing was cancelled; ask for application/json to see what there is of it"
        raise ApiError(409, message, code="cancelled")


# --- to the reply -------------------------------------------------------------------------------


class _Shown(NamedTuple):
    """The form of a reply."""

    media: MediaType
    granularity: Granularity
    output: Output


async def _draw(
    request: Request,
    server: AppState,
    engine: EngineProtocol,
    spec: GenerationSpec,
    shown: _Shown,
    background: bool,
    key: RequestKey | None,
) -> Response:
    media, granularity, output = shown
    if media == "text/event-stream":
        generation = submit_generation(request, server, engine, spec, key)
        return _stream(request, server, engine, generation, granularity, None, output)
    if background and engine.queue.limits.keeps_results:  # or its result would be nowhere
        generation = submit_generation(request, server, engine, spec, key, detached=True)
        headers = {
            "Location": f"{request.scope.get('root_path', '')}/v1/generations/{generation.id}",
            "Preference-Applied": "respond-async",
            **generation_headers(generation),
        }
        async with watch_client(request) as client:
            return await server.encode_pool.run(
                client, _described, generation, output, headers, 202
            )
    generation = submit_generation(request, server, engine, spec, key)
    # Nobody can come back for the reply, and so the generation leaves with its reader, unless it
    # has a name.
    await wait_for_result(request, engine, generation, grace=0 if key is None else None)
    async with watch_client(request) as client:
        return await server.encode_pool.run(client, _reply, generation, media, output)


def _described(
    generation: Generation,
    output: Output = "png",
    headers: dict[str, str] | None = None,
    status: int = 200,
) -> Response:
    return json_response(GenerationReply.of(generation, output), headers, status)


def _reply(generation: Generation, media: MediaType, output: Output) -> Response:
    config = generation.config
    headers = generation_headers(generation)
    if media == "application/json":
        return _described(generation, output, headers)
    if failed := incomplete_error(generation):
        raise failed
    drawn = [image.read(0, config.pixels) for image in generation.images]
    if media == "application/x-npy":
        return Response(to_npy(drawn, config), media_type=media, headers=headers)
    if media == "image/png":
        png = to_png(drawn[0], config) if len(drawn) == 1 else to_grid(drawn, config)
        return Response(png, media_type=media, headers=headers)
    names = [f"{image.index:04d}-seed-{image.seed}.png" for image in generation.images]
    pngs = [to_png(pixels, config) for pixels in drawn]
    return Response(to_zip(list(zip(names, pngs, strict=True))), media_type=media, headers=headers)


def _stream(
    request: Request,
    server: AppState,
    engine: EngineProtocol,
    generation: Generation,
    granularity: Granularity,
    resumed: list[Cursor] | None,
    output: Output,
) -> StreamingResponse:
    def events(client: WaitingClient) -> AsyncIterator[bytes]:
        return stream_events(
            generation,
            client,
            server.stream_pacer,
            server.encode_pool_for(generation.config.pixels),
            granularity=granularity,
            resumed=resumed,
            output=output,
            place=lambda: engine.queue.estimate_wait(generation),
        )

    return stream_response(request, engine, generation, events, server.stream_pacer)
