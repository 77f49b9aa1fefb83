"""A sample as a file: its address says all that it depends on beside the model's weights."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response

from scanline.model.noise import MAX_SEED
from scanline.service.api.beginning import Key, begin
from scanline.service.api.lookup import Server, bearer, find_served, settle_shape
from scanline.service.api.requests import LABEL_HELP, Guidance, Temperature, TopP
from scanline.service.generation import Spec
from scanline.service.http.bodies import known_query
from scanline.service.http.errors import errors
from scanline.service.http.waiting import client_of, cut_off, draw_to_end
from scanline.service.pictures import to_png
from scanline.service.repeats import fingerprint

router = APIRouter(prefix="/v1", dependencies=[Depends(bearer), Depends(known_query)])
_CACHED = {name: {"schema": {"type": "string"}} for name in ("ETag", "Cache-Control")}
_REPLIES: dict[int | str, dict[str, Any]] = errors(404, 429, 500, 503) | {
    200: {"description": "The sample.", "content": {"image/png": {}}, "headers": _CACHED},
    304: {"description": "It is still the one of `If-None-Match`."},
}


@router.get(
    "/samples/{model}/{seed}.png", tags=["draw"], responses=_REPLIES, response_class=Response
)
async def get_sample(
    request: Request,
    server: Server,
    model: str,
    seed: Annotated[int, Path(ge=0, le=MAX_SEED)],
    label: Annotated[str | None, Query(description=LABEL_HELP)] = None,
    guidance: Guidance = None,
    top_p: TopP = None,
    temperature: Temperature = 1.0,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """Draw one sample; its `ETag` is the same for as long as the bytes are."""
    served = find_served(server, model)
    shape = settle_shape(served, label, top_p, guidance)
    spec = Spec(n=1, seed=seed, temperature=temperature, **shape._asdict())
    mark = fingerprint(model, spec, seed)
    tag = f'"{hashlib.sha256(served.mark.encode() + mark).hexdigest()[:32]}"'
    # What needs a key is for its owner's cache alone. A cache asks again each time, which costs
    # nothing, for with other weights the same address has another picture.
    whose = "private" if server.settings.api_keys else "public"
    headers = {"ETag": tag, "Cache-Control": f"{whose}, no-cache"}
    known = {part.strip().removeprefix("W/") for part in (if_none_match or "").split(",")}
    if known & {tag, "*"}:
        return Response(status_code=304, headers=headers)
    generation = begin(request, server, served.engine, spec, Key("sample", tag, mark))
    await draw_to_end(request, served.engine, generation)
    (image,) = generation.images
    if failed := cut_off(generation):
        raise failed
    config = generation.config
    async with client_of(request) as client:
        png = await server.writing.run(client, to_png, image.read(0, config.pixels), config)
    return Response(png, media_type="image/png", headers=headers)
