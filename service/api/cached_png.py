"""A sample as a file: its address says all that it depends on beside the model's weights."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from numpy.typing import NDArray
from pydantic import BeforeValidator, WithJsonSchema

from scanline.model.config import ModelConfig
from scanline.model.noise import MAX_SEED
from scanline.service.api.dependencies import (
    COMMON_DEPENDENCIES,
    Server,
    find_model,
    resolve_sampling,
)
from scanline.service.api.requests import LABEL_HELP, Guidance, Temperature, TopP
from scanline.service.api.submission import submit_generation
from scanline.service.engine.generation import GenerationSpec
from scanline.service.engine.idempotency import RequestKey, fingerprint
from scanline.service.http.errors import error_responses
from scanline.service.http.waiting import incomplete_error, wait_for_result, watch_client
from scanline.service.images import to_png
from scanline.service.state import AppState, LoadedModel

router = APIRouter(prefix="/v1", dependencies=COMMON_DEPENDENCIES)
_CACHED = {name: {"schema": {"type": "string"}} for name in ("ETag", "Cache-Control")}
_REPLIES: dict[int | str, dict[str, Any]] = error_responses(404, 429, 500, 503) | {
    200: {"description": "The sample.", "content": {"image/png": {}}, "headers": _CACHED},
    304: {"description": "It is still the one of `If-None-Match`."},
}


def _digits(text: str) -> str:
    """Refuse whatever else is a number to Python: one picture has one address."""
    if not text.isascii() or not text.isdecimal() or (text[0] == "0" and len(text) > 1):
        raise ValueError("write it in digits alone, without zeros before it")
    if len(text) > len(str(MAX_SEED)) or int(text) > MAX_SEED:
        raise ValueError(f"a seed is 0 to {MAX_SEED}")
    return text


Seed = Annotated[
    int,
    BeforeValidator(_digits),
    WithJsonSchema({"type": "integer", "minimum": 0, "maximum": MAX_SEED}),
    Path(description="Of the sample."),
]


def _known_tags(
    request: Request, if_none_match: Annotated[str | None, Header()] = None
) -> set[str]:
    tags = ",".join(request.headers.getlist("if-none-match")).split(",")
    return {tag.strip().removeprefix("W/") for tag in tags}


KnownETags = Annotated[set[str], Depends(_known_tags)]  # those of `If-None-Match`


Encode = Callable[[list[NDArray[np.uint8]], ModelConfig], bytes]  # images of [T, C] to a PNG


async def png_response(
    request: Request,
    server: AppState,
    loaded: LoadedModel,
    spec: GenerationSpec,
    tags: set[str],
    caching: str,
    encode: Encode,
) -> Response:
    """Draw what an address names, and reply with a picture of it; 304 if the client has it already.

    Its ``ETag`` is the same for as long as the bytes are, and what was asked for a moment ago is
    not drawn again. ``caching`` is the reply's ``Cache-Control``.
    """
    mark = fingerprint(loaded.engine.name, spec, spec.seed)
    tag = f'"{hashlib.sha256(loaded.fingerprint.encode() + mark).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": caching}
    if tags & {tag, "*"}:
        return Response(status_code=304, headers=headers)
    generation = submit_generation(
        request, server, loaded.engine, spec, RequestKey("sample", tag, mark)
    )
    await wait_for_result(request, loaded.engine, generation)
    if failed := incomplete_error(generation):
        raise failed
    config = generation.config
    images = [image.read(0, config.pixels) for image in generation.images]
    async with watch_client(request) as client:
        png = await server.encode_pool.run(client, encode, images, config)
    return Response(png, media_type="image/png", headers=headers)


@router.get(
    "/samples/{model}/{seed}.png", tags=["draw"], responses=_REPLIES, response_class=Response
)
async def get_sample(
    request: Request,
    server: Server,
    model: str,
    seed: Seed,
    tags: KnownETags,
    label: Annotated[str | None, Query(description=LABEL_HELP)] = None,
    guidance: Guidance = None,
    top_p: TopP = None,
    temperature: Temperature = 1.0,
) -> Response:
    """Draw one sample; its `ETag` is the same for as long as the bytes are."""
    loaded = find_model(server, model)
    params = resolve_sampling(server, loaded, label or None, top_p, guidance)
    spec = GenerationSpec(n=1, seed=seed, temperature=temperature, **params._asdict())
    # What needs a key is for its owner's cache alone. A cache asks again each time, which costs
    # nothing, for with other weights the same address has another picture.
    whose = "private" if server.settings.api_keys else "public"

    def encode(images: list[NDArray[np.uint8]], config: ModelConfig) -> bytes:
        return to_png(images[0], config)

    return await png_response(request, server, loaded, spec, tags, f"{whose}, no-cache", encode)
