"""Cacheable PNG replies: one sample per URL, with an ``ETag``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response

from scanline.model.noise import MAX_SEED
from scanline.service import __version__
from scanline.service.api.dependencies import (
    COMMON_DEPENDENCIES,
    AppStateDep,
    find_model,
)
from scanline.service.api.requests import SampleQuery
from scanline.service.api.submission import build_spec, submit_generation
from scanline.service.api.waiting import wait_for_images
from scanline.service.engine.generation import Generation, GenerationSpec
from scanline.service.engine.idempotency import RequestKey, fingerprint
from scanline.service.errors import error_responses
from scanline.service.recipes.png_encoding import encode_grid
from scanline.service.recipes.recipe import FORMAT as RECIPE_FORMAT
from scanline.service.state.app_state import AppState
from scanline.service.state.registry import LoadedModel

router = APIRouter(prefix="/v1", dependencies=COMMON_DEPENDENCIES)
_CACHED = {name: {"schema": {"type": "string"}} for name in ("ETag", "Cache-Control")}
_REPLIES: dict[int | str, dict[str, Any]] = error_responses(404, 409, 429, 500, 503) | {
    200: {"description": "The sample.", "content": {"image/png": {}}, "headers": _CACHED},
    304: {"description": "The client's copy (`If-None-Match`) is still valid."},
}
Seed = Annotated[int, Path(ge=0, le=MAX_SEED, description="Seed of the sample.")]


def _client_etags(
    request: Request, if_none_match: Annotated[str | None, Header()] = None
) -> set[str]:
    """Return the ETags in the `If-None-Match` headers."""
    tags = ",".join(request.headers.getlist("if-none-match")).split(",")
    return {tag.strip().removeprefix("W/") for tag in tags}


ClientETags = Annotated[set[str], Depends(_client_etags)]
Encode = Callable[[Generation], bytes]  # all images to one PNG


async def png_response(
    request: Request,
    app_state: AppState,
    loaded: LoadedModel,
    spec: GenerationSpec,
    etags: set[str],
    cache_control: str,
    encode: Encode,
) -> Response:
    """Draw a spec and reply with a PNG; 304 if the client has it already.

    The ``ETag`` changes exactly if the bytes change. It is also the idempotency key, so that a
    recent picture is not drawn again.

    Args:
        request: The HTTP request.
        app_state: The application state.
        loaded: The model that draws.
        spec: The images to draw.
        etags: The client's ETags (``ClientETags``).
        cache_control: The reply's ``Cache-Control``.
        encode: Encodes all images as one PNG.

    Raises:
        ApiError: If drawing fails or is cancelled.
    """
    digest = fingerprint(loaded.engine.name, spec, spec.seed)
    provenance = loaded.provenance if app_state.settings.png_metadata else None
    # A cluster's replicas, and so the variant, may change while the model is served.
    facts = (
        f"{__version__} {loaded.engine.variant} {loaded.checkpoint.digest} "
        f"{RECIPE_FORMAT if provenance else None} {provenance}"
    )
    etag = f'"{hashlib.sha256(facts.encode() + digest).hexdigest()[:32]}"'
    headers = {"ETag": etag, "Cache-Control": cache_control}
    if etags & {etag, "*"}:
        return Response(status_code=304, headers=headers)
    queue, generation = submit_generation(
        request, app_state, loaded, spec, RequestKey("sample", etag, digest)
    )
    await wait_for_images(request, queue, generation)
    png = await app_state.encode_pool.run_for(request, encode, generation)
    return Response(png, media_type="image/png", headers=headers)


@router.get(
    "/samples/{model}/{seed}.png", tags=["draw"], responses=_REPLIES, response_class=Response
)
async def get_sample(
    request: Request,
    app_state: AppStateDep,
    model: str,
    seed: Seed,
    etags: ClientETags,
    query: Annotated[SampleQuery, Query()],
) -> Response:
    """Draw one sample. Its `ETag` changes exactly if the bytes change."""
    loaded = find_model(app_state, model)
    options = query.sampling_options(label=query.label or None)
    spec = build_spec(app_state, loaded, options, seed=seed)
    # With API keys, only the client itself may cache the reply. `no-cache` makes caches revalidate
    # each time, because the picture changes with the weights.
    scope = "private" if app_state.settings.api_keys else "public"

    caching = f"{scope}, no-cache"
    return await png_response(request, app_state, loaded, spec, etags, caching, encode_grid)
