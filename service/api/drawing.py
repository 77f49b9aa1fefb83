"""Routes that draw images: ``POST /v1/samples`` and ``POST /v1/completions``."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Depends, Form, Request, Response

from scanline.service.api.dependencies import (
    BODY_DEPENDENCIES,
    AppStateDep,
    check_capacity,
    find_model,
    png_writer,
)
from scanline.service.api.generation_reply import (
    IMAGES_RESPONSE,
    encode_generation,
    json_reply,
    stream_generation,
)
from scanline.service.api.media import (
    GENERATION_HEADERS,
    MediaType,
    generation_headers,
    negotiate_media_type,
)
from scanline.service.api.replies import GenerationReply
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
from scanline.service.api.waiting import wait_for_result
from scanline.service.engine.generation import GenerationSpec
from scanline.service.engine.idempotency import RequestKey
from scanline.service.errors import error_responses
from scanline.service.http.bodies import unique_form_fields
from scanline.service.http.disconnect import watch_client
from scanline.service.http.forms import FormRoute
from scanline.service.images import read_masked_image
from scanline.service.state.app_state import AppState
from scanline.service.state.registry import LoadedModel

router = APIRouter(prefix="/v1", dependencies=BODY_DEPENDENCIES, route_class=FormRoute)
_LOCATION = {"description": "URL of the generation.", "schema": {"type": "string"}}
_REPLIES = (
    error_responses(403, 404, 406, 409, 413, 415, 422, 429, 500, 503)
    | IMAGES_RESPONSE
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
    return await _draw(request, app_state, loaded, spec, reply_format, background, key)


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
    return await _draw(request, app_state, loaded, spec, reply_format, background, key)


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
    loaded = find_model(app_state, body.model)
    check_capacity(request, app_state, loaded, body.n, key)
    options = body.sampling_options()
    return loaded, build_spec(app_state, loaded, options, n=body.n, seed=body.seed)


async def _draw(
    request: Request,
    app_state: AppState,
    loaded: LoadedModel,
    spec: GenerationSpec,
    reply_format: _ReplyFormat,
    background: bool,
    key: RequestKey | None,
) -> Response:
    """Submit a generation, and reply with its stream, its images, or its URL."""
    media, granularity, output = reply_format
    engine = loaded.engine
    if media == "text/event-stream":
        submitted = submit_generation(request, app_state, engine, spec, key)
        return stream_generation(request, app_state, submitted, granularity, None, output)
    if background and engine.queue.limits.keeps_results:  # otherwise the result could not be read
        queue, generation = submit_generation(request, app_state, engine, spec, key, detached=True)
        writer = png_writer(app_state, queue)
        headers = {
            "Location": f"{request.scope.get('root_path', '')}/v1/generations/{generation.id}",
            "Preference-Applied": "respond-async",
            **generation_headers(generation),
        }
        async with watch_client(request) as client:
            return await app_state.encode_pool.run(
                client, json_reply, generation, writer, output, headers, 202
            )
    queue, generation = submit_generation(request, app_state, engine, spec, key)
    writer = png_writer(app_state, queue)
    # Without a key, no later request can read this generation: cancel it if the client disconnects.
    await wait_for_result(request, queue, generation, grace=0 if key is None else None)
    async with watch_client(request) as client:
        return await app_state.encode_pool.run(
            client, encode_generation, generation, writer, media, output
        )
