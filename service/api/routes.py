"""The API under ``/v1``: a request's body to the engine, and back as JSON, PNG, ZIP, NPY or SSE."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Form, Header, Request, Response
from fastapi.responses import StreamingResponse

from scanline.service.api.beginning import (
    Background,
    IdempotencyKey,
    begin,
    name_request,
)
from scanline.service.api.cursors import END, Cursor, read_cursors
from scanline.service.api.events import EVENT_STREAM, stream_events
from scanline.service.api.lookup import (
    EVERY_ROUTE,
    Server,
    choose_seed,
    find_served,
    find_with_room,
    resolve_sampling,
)
from scanline.service.api.replies import GenerationReply, ModelList, ModelReply
from scanline.service.api.requests import CompletionForm, Granularity, Output, SampleRequest
from scanline.service.generation import Generation, Spec
from scanline.service.http.bodies import once_each
from scanline.service.http.errors import SOON, ApiError, errors
from scanline.service.http.media import MEDIA, NAMING, Media, choose_media, json_reply, naming
from scanline.service.http.sse import stream_reply
from scanline.service.http.waiting import Client, client_of, cut_off, draw_to_end, wait_finished
from scanline.service.pictures import read_upload, to_grid, to_npy, to_png, to_zip
from scanline.service.repeats import Key
from scanline.service.server import Scanline
from scanline.service.workshop import Workshop

router = APIRouter(prefix="/v1", dependencies=EVERY_ROUTE)
_LOCATION = {"description": "The generation's address.", "schema": {"type": "string"}}
_IMAGES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The images, in the form that `Accept` (or `stream`) asks for.",
        "content": {kind: {} for kind in MEDIA[1:]} | EVENT_STREAM,
        "headers": NAMING,
    },
}
_REPLIES = (
    errors(403, 404, 406, 413, 415, 422, 429, 500, 503)
    | _IMAGES
    | {
        202: {
            "description": "With `Prefer: respond-async`: begun.",
            "model": GenerationReply,
            "headers": NAMING | {"Location": _LOCATION},
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
    media = choose_media(
        request, body.stream, body.chosen, stream_given="stream" in body.model_fields_set
    )
    served = find_with_room(request, server, body.model, body.n, idempotency_key)
    engine = served.engine
    params = resolve_sampling(server, served, body.label, body.top_p, body.guidance)
    spec = Spec(
        n=body.n,
        seed=choose_seed(body.seed),
        temperature=body.temperature,
        **params._asdict(),
    )
    key = name_request(request, idempotency_key, engine, spec, body.seed)
    shown = _Shown(media, body.granularity, body.output)
    return await _draw(request, server, engine, spec, shown, background, key)


@router.post(
    "/completions", tags=["draw"], response_model=GenerationReply, responses=_REPLIES,
    dependencies=[Depends(once_each())],
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
    media = choose_media(
        request, form.stream, form.chosen, stream_given="stream" in form.model_fields_set
    )
    served = find_with_room(request, server, form.model, form.n, idempotency_key)
    engine = served.engine
    params = resolve_sampling(server, served, form.label, form.top_p, form.guidance, form.particles)
    async with client_of(request) as client:
        canvas, known = await server.reading.run(
            client,
            read_upload,
            form.image.file,
            form.mask.file if form.mask else None,
            form.known_rows,
            form.fit,
            engine.config,
        )
    spec = Spec(
        n=form.n,
        seed=choose_seed(form.seed),
        temperature=form.temperature,
        **params._asdict(),
        canvas=canvas,
        known=known,
    )
    key = name_request(request, idempotency_key, engine, spec, form.seed)
    shown = _Shown(media, form.granularity, form.output)
    return await _draw(request, server, engine, spec, shown, background, key)


@router.get(
    "/generations/{identifier}", tags=["draw"], response_model=GenerationReply,
    responses=errors(404, 406, 409, 500, 503) | _IMAGES,
)  # fmt: skip
async def get_generation(
    request: Request, server: Server, identifier: str, output: Output = "png"
) -> Response:
    """Look at a generation, while it runs or for some minutes after; as files once it is finished.

    `Accept` chooses the form, as for `POST /v1/samples`.
    """
    engine, generation = _find(server, identifier)
    media = choose_media(request, False, {"output"} & request.query_params.keys())
    if media == "text/event-stream":
        return _stream(request, server, engine, generation, "auto", None, output)
    if media != "application/json":
        _check_whole(generation)
    async with client_of(request) as client:
        reply = await server.writing.run(client, _reply, generation, media, output)
    reply.headers.update({"Cache-Control": "no-store", "Vary": "Accept"})
    return reply


@router.get(
    "/generations/{identifier}/events",
    tags=["draw"],
    responses=errors(404)
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
    if last_event_id == END:
        return Response(status_code=204)
    cursors = read_cursors(last_event_id, generation) if last_event_id else None
    return _stream(request, server, engine, generation, granularity, cursors, output)


@router.delete(
    "/generations/{identifier}", tags=["draw"], response_model=GenerationReply,
    responses=errors(404),
)  # fmt: skip
async def cancel_generation(request: Request, server: Server, identifier: str) -> Response:
    """Cancel a generation; what is drawn already stays readable. Cancelling twice is no error."""
    engine, generation = _find(server, identifier)
    engine.queue.cancel(generation)
    async with client_of(request) as client:
        await wait_finished(generation, client)
        return await server.writing.run(client, _described, generation)


@router.get("/models", tags=["models"], responses=errors(503))
async def list_models(server: Server) -> ModelList:
    """List the models, the default first."""
    find_served(server, None)  # or say that they are loading: an empty list would mean none
    return ModelList(data=[ModelReply.of(name, model) for name, model in server.models.items()])


@router.get("/models/{name}", tags=["models"], responses=errors(404, 503))
async def get_model(server: Server, name: str) -> ModelReply:
    """Describe one model."""
    return ModelReply.of(name, find_served(server, name))


# --- from the request ---------------------------------------------------------------------------


def _find(server: Scanline, identifier: str) -> tuple[Workshop, Generation]:
    for served in server.models.values():
        if generation := served.engine.queue.find(identifier):
            return served.engine, generation
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
        raise ApiError(409, message, code="not_finished", headers=SOON)
    if generation.error is None and cut_off(generation):
        message = "the drawing was cancelled; ask for application/json to see what there is of it"
        raise ApiError(409, message, code="cancelled")


# --- to the reply -------------------------------------------------------------------------------


class _Shown(NamedTuple):
    """The form of a reply."""

    media: Media
    granularity: Granularity
    output: Output


async def _draw(
    request: Request,
    server: Scanline,
    engine: Workshop,
    spec: Spec,
    shown: _Shown,
    background: bool,
    key: Key | None,
) -> Response:
    media, granularity, output = shown
    if media == "text/event-stream":
        generation = begin(request, server, engine, spec, key)
        return _stream(request, server, engine, generation, granularity, None, output)
    if background and engine.queue.limits.keeps:  # or its result would be nowhere
        generation = begin(request, server, engine, spec, key, detached=True)
        headers = {
            "Location": f"{request.scope.get('root_path', '')}/v1/generations/{generation.id}",
            "Preference-Applied": "respond-async",
            **naming(generation),
        }
        async with client_of(request) as client:
            return await server.writing.run(client, _described, generation, output, headers, 202)
    generation = begin(request, server, engine, spec, key)
    # Nobody can come back for the reply, and so the generation leaves with its reader, unless it
    # has a name.
    await draw_to_end(request, engine, generation, grace=0 if key is None else None)
    async with client_of(request) as client:
        return await server.writing.run(client, _reply, generation, media, output)


def _described(
    generation: Generation,
    output: Output = "png",
    headers: dict[str, str] | None = None,
    status: int = 200,
) -> Response:
    return json_reply(GenerationReply.of(generation, output), headers, status)


def _reply(generation: Generation, media: Media, output: Output) -> Response:
    config = generation.config
    headers = naming(generation)
    if media == "application/json":
        return _described(generation, output, headers)
    if failed := cut_off(generation):
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
    server: Scanline,
    engine: Workshop,
    generation: Generation,
    granularity: Granularity,
    resumed: list[Cursor] | None,
    output: Output,
) -> StreamingResponse:
    def events(client: Client) -> AsyncIterator[bytes]:
        return stream_events(
            generation,
            client,
            server.streams,
            server.pool_for(generation.config.pixels),
            granularity=granularity,
            resumed=resumed,
            output=output,
            place=lambda: engine.queue.place(generation),
        )

    return stream_reply(request, engine, generation, events, server.streams)
