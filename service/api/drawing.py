"""Routes that draw images: ``POST /v1/samples`` and ``POST /v1/completions``."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends, Form, Request, Response

from scanline.service.api.dependencies import BODY_DEPENDENCIES, AppStateDep, find_model
from scanline.service.api.generation_reply import (
    GENERATION_HEADERS,
    IMAGES_RESPONSE,
    MediaType,
    encode_generation,
    generation_headers,
    json_reply,
    negotiate_media_type,
    stream_generation,
)
from scanline.service.api.replies import GenerationReply
from scanline.service.api.requests import (
    CompletionForm,
    DrawRequest,
    SampleRequest,
)
from scanline.service.api.submission import (
    Background,
    IdempotencyKey,
    build_spec,
    check_capacity,
    request_key,
    submit_generation,
)
from scanline.service.api.waiting import wait_for_result
from scanline.service.engine.generation import GenerationSpec
from scanline.service.errors import error_responses
from scanline.service.http.bodies import unique_form_fields
from scanline.service.http.forms import FormRoute
from scanline.service.http.paths import root_path
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
    media = _media_type(request, body)
    loaded, spec = _resolve(request, app_state, body, idempotency_key)
    return await _draw(request, app_state, loaded, spec, body, media, background, idempotency_key)


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
    media = _media_type(request, form)
    loaded, spec = _resolve(request, app_state, form, idempotency_key)
    canvas, known = await app_state.upload_pool.run_for(
        request,
        read_masked_image,
        form.image.file,
        form.mask.file if form.mask else None,
        form.known_rows,
        form.fit,
        loaded.engine.config,
    )
    spec = replace(spec, canvas=canvas, known=known)
    return await _draw(request, app_state, loaded, spec, form, media, background, idempotency_key)


def _media_type(request: Request, body: DrawRequest) -> MediaType:
    """Select the reply's media type by the `Accept` header and the body."""
    stream_given = "stream" in body.model_fields_set
    fields = body.non_default_fields
    return negotiate_media_type(request, body.stream, fields, stream_given=stream_given)


def _resolve(
    request: Request, app_state: AppState, body: DrawRequest, key: str | None
) -> tuple[LoadedModel, GenerationSpec]:
    """Find a request's model, check that it accepts ``n`` images, and build their spec."""
    loaded = find_model(app_state, body.model)
    check_capacity(request, app_state, loaded, body.n, key)
    options = body.sampling_options()
    return loaded, build_spec(app_state, loaded, options, n=body.n, seed=body.seed)


async def _draw(
    request: Request,
    app_state: AppState,
    loaded: LoadedModel,
    spec: GenerationSpec,
    body: DrawRequest,
    media: MediaType,
    background: bool,
    idempotency_key: str | None,
) -> Response:
    """Submit a generation, and reply with its stream, its images, or its URL."""
    key = request_key(request, idempotency_key, loaded.engine, spec, body.seed)
    output = body.output
    if media == "text/event-stream":
        submitted = submit_generation(request, app_state, loaded, spec, key)
        return stream_generation(request, app_state, submitted, body.granularity, None, output)
    # In the background only if the result can be read later.
    if background and loaded.engine.queue.limits.keeps_results:
        queue, generation = submit_generation(request, app_state, loaded, spec, key, detached=True)
        headers = {
            "Location": f"{root_path(request.scope)}/v1/generations/{generation.id}",
            "Preference-Applied": "respond-async",
            **generation_headers(generation),
        }
        return await app_state.encode_pool.run_for(
            request, json_reply, generation, output, headers, 202
        )
    queue, generation = submit_generation(request, app_state, loaded, spec, key)
    # Without a key, no later request can read this generation: cancel it if the client disconnects.
    await wait_for_result(request, queue, generation, grace=0 if key is None else None)
    encode = (encode_generation, generation, media, output)
    return await app_state.encode_pool.run_for(request, *encode)
