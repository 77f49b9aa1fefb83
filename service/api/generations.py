"""Routes of a generation: read it, stream its events, cancel it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from scanline.service.api.cursors import END_ID, parse_cursors
from scanline.service.api.dependencies import COMMON_DEPENDENCIES, AppStateDep
from scanline.service.api.event_schemas import EVENT_STREAM
from scanline.service.api.generation_reply import (
    IMAGES_RESPONSE,
    encode_generation,
    json_reply,
    negotiate_media_type,
    stream_generation,
)
from scanline.service.api.replies import GenerationReply
from scanline.service.api.requests import Granularity, Output
from scanline.service.api.waiting import wait_until_finished
from scanline.service.engine.queue import QueuedGeneration
from scanline.service.errors import error_responses
from scanline.service.http.disconnect import watch_client
from scanline.service.http.errors import RETRY_SOON, ApiError
from scanline.service.state.app_state import AppState

router = APIRouter(prefix="/v1/generations", dependencies=COMMON_DEPENDENCIES)
LastEventId = Annotated[
    str | None, Header(description="The `id` of the last event that the client received.")
]


@router.get(
    "/{identifier}", tags=["draw"], response_model=GenerationReply,
    responses=error_responses(404, 406, 409, 500, 503) | IMAGES_RESPONSE,
)  # fmt: skip
async def get_generation(
    request: Request,
    app_state: AppStateDep,
    identifier: str,
    output: Output = "png",
    last_event_id: LastEventId = None,
) -> Response:
    """Return a generation, while it runs and for some minutes afterwards.

    `Accept` selects the form, as for `POST /v1/samples`; files are available once it is finished.
    """
    queued = _find(request, app_state, identifier)
    generation = queued.generation
    media = negotiate_media_type(request, False, {"output"} & request.query_params.keys())
    if media == "text/event-stream":
        return _events(request, app_state, queued, "auto", output, last_event_id)
    if media != "application/json" and not generation.finished:
        message = "it is still being drawn; try again in a moment, or ask for application/json"
        raise ApiError(409, message, code="not_finished", headers=RETRY_SOON)
    reply = await app_state.encode_pool.run_for(
        request, encode_generation, generation, media, output
    )
    reply.headers["Vary"] = "Accept"
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
    last_event_id: LastEventId = None,
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
    queued = _find(request, app_state, identifier)
    last = last_event_id or last_event_id_param
    return _events(request, app_state, queued, granularity, output, last)


@router.delete(
    "/{identifier}", tags=["draw"], response_model=GenerationReply,
    responses=error_responses(404),
)  # fmt: skip
async def cancel_generation(request: Request, app_state: AppStateDep, identifier: str) -> Response:
    """Cancel a generation. Its pixels so far stay readable. Cancelling it again has no effect."""
    queue, generation = _find(request, app_state, identifier)
    queue.cancel(generation)
    async with watch_client(request) as client:
        await wait_until_finished(generation, client)
        return await app_state.encode_pool.run(client, json_reply, generation)


def _events(
    request: Request,
    app_state: AppState,
    queued: QueuedGeneration,
    granularity: Granularity,
    output: Output,
    last_event_id: str | None,
) -> Response:
    """Stream a generation's events after the last one that the client received, if any."""
    if last_event_id == END_ID:
        return Response(status_code=204)
    cursors = parse_cursors(last_event_id, queued.generation) if last_event_id else None
    return stream_generation(request, app_state, queued, granularity, cursors, output)


def _find(request: Request, app_state: AppState, identifier: str) -> QueuedGeneration:
    """Find a generation by id. If the server has API keys, only its own key finds it."""
    found = app_state.registry.find_generation(identifier)
    if found and request.state.key in ("", found.generation.caller):
        return found
    seconds = app_state.settings.keep_seconds
    raise ApiError(
        404,
        f"there is no generation {identifier!r}; finished ones are kept for at most "
        f"{seconds:.0f} s",
        param="identifier",
        code="generation_not_found",
    )
