"""Routes of a generation: read it, stream its events, cancel it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from scanline.service.api.cursors import END_ID, parse_cursors
from scanline.service.api.dependencies import COMMON_DEPENDENCIES, AppStateDep, png_writer
from scanline.service.api.event_schemas import EVENT_STREAM
from scanline.service.api.generation_reply import (
    IMAGES_RESPONSE,
    encode_generation,
    json_reply,
    stream_generation,
)
from scanline.service.api.media import negotiate_media_type
from scanline.service.api.replies import GenerationReply
from scanline.service.api.requests import Granularity, Output
from scanline.service.api.waiting import wait_until_finished
from scanline.service.engine.generation import Generation
from scanline.service.engine.queue import QueuedGeneration
from scanline.service.errors import error_responses, incomplete_error
from scanline.service.http.disconnect import watch_client
from scanline.service.http.errors import RETRY_SOON, ApiError
from scanline.service.state.app_state import AppState

router = APIRouter(prefix="/v1/generations", dependencies=COMMON_DEPENDENCIES)


@router.get(
    "/{identifier}", tags=["draw"], response_model=GenerationReply,
    responses=error_responses(404, 406, 409, 500, 503) | IMAGES_RESPONSE,
)  # fmt: skip
async def get_generation(
    request: Request, app_state: AppStateDep, identifier: str, output: Output = "png"
) -> Response:
    """Return a generation, while it runs and for some minutes afterwards.

    `Accept` selects the form, as for `POST /v1/samples`; files are available once it is finished.
    """
    queued = _find(app_state, identifier)
    queue, generation = queued
    media = negotiate_media_type(request, False, {"output"} & request.query_params.keys())
    if media == "text/event-stream":
        return stream_generation(request, app_state, queued, "auto", None, output)
    if media != "application/json":
        _check_complete(generation)
    writer = png_writer(app_state, queue)
    async with watch_client(request) as client:
        reply = await app_state.encode_pool.run(
            client, encode_generation, generation, writer, media, output
        )
    reply.headers.update({"Cache-Control": "no-store", "Vary": "Accept"})
    return reply


@router.get(
    "/{identifier}/events",
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
    last_event_id_param: Annotated[
        str | None,
        Query(
            alias="lastEventId",
            description="The same as `Last-Event-ID`, which takes precedence. Implementations of "
            "EventSource that cannot send headers send this instead.",
        ),
    ] = None,
) -> Response:
    """Stream a generation's events, from the start or after `Last-Event-ID`.

    After the last event the reply is 204, which stops a browser's EventSource from reconnecting.
    """
    queued = _find(app_state, identifier)
    last = last_event_id or last_event_id_param
    if last == END_ID:
        return Response(status_code=204)
    cursors = parse_cursors(last, queued.generation) if last else None
    return stream_generation(request, app_state, queued, granularity, cursors, output)


@router.delete(
    "/{identifier}", tags=["draw"], response_model=GenerationReply,
    responses=error_responses(404),
)  # fmt: skip
async def cancel_generation(request: Request, app_state: AppStateDep, identifier: str) -> Response:
    """Cancel a generation. Its pixels so far stay readable. Cancelling it again has no effect."""
    queue, generation = _find(app_state, identifier)
    queue.cancel(generation)
    async with watch_client(request) as client:
        await wait_until_finished(generation, client)
        writer = png_writer(app_state, queue)
        return await app_state.encode_pool.run(client, json_reply, generation, writer)


def _find(app_state: AppState, identifier: str) -> QueuedGeneration:
    """Find a generation by id."""
    if found := app_state.registry.find_generation(identifier):
        return found
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
