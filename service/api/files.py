"""A sample as a file: its address says all that it depends on beside the model's weights."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from pydantic import BeforeValidator

from scanline.model.noise import MAX_SEED
from scanline.service.api.beginning import begin
from scanline.service.api.lookup import EVERY_ROUTE, Server, find_served, settle_shape
from scanline.service.api.requests import LABEL_HELP, Guidance, Temperature, TopP
from scanline.service.generation import Spec
from scanline.service.http.errors import errors
from scanline.service.http.waiting import client_of, cut_off, draw_to_end
from scanline.service.pictures import to_png
from scanline.service.repeats import Key, fingerprint
from scanline.service.server import Served

router = APIRouter(prefix="/v1", dependencies=EVERY_ROUTE)
_CACHED = {name: {"schema": {"type": "string"}} for name in ("ETag", "Cache-Control")}
_REPLIES: dict[int | str, dict[str, Any]] = errors(404, 429, 500, 503) | {
    200: {"description": "The sample.", "content": {"image/png": {}}, "headers": _CACHED},
    304: {"description": "It is still the one of `If-None-Match`."},
}


def _digits(text: str) -> str:
    """Refuse whatever else is a number to Python: an address too many for one picture."""
    if not text.isascii() or not text.isdecimal() or (text[0] == "0" and len(text) > 1):
        raise ValueError("write it in digits alone, without zeros before it")
    return text


Seed = Annotated[int, BeforeValidator(_digits), Path(ge=0, le=MAX_SEED)]


def _known_tags(
    request: Request, if_none_match: Annotated[str | None, Header()] = None
) -> set[str]:
    tags = ",".join(request.headers.getlist("if-none-match")).split(",")
    return {tag.strip().removeprefix("W/") for tag in tags}


KnownTags = Annotated[set[str], Depends(_known_tags)]  # those of `If-None-Match`


class Named(NamedTuple):
    """A drawing under the name that it has for as long as its bytes are the same."""

    tag: str
    key: Key

    @classmethod
    def of(cls, served: Served, spec: Spec) -> Named:
        """Name what a model draws."""
        mark = fingerprint(served.engine.name, spec, spec.seed)
        tag = f'"{hashlib.sha256(served.mark.encode() + mark).hexdigest()[:32]}"'
        return cls(tag, Key("sample", tag, mark))

    def known(self, tags: set[str]) -> bool:
        """Say whether the client has it already."""
        return bool(tags & {self.tag, "*"})


@router.get(
    "/samples/{model}/{seed}.png", tags=["draw"], responses=_REPLIES, response_class=Response
)
async def get_sample(
    request: Request,
    server: Server,
    model: str,
    seed: Seed,
    tags: KnownTags,
    label: Annotated[str | None, Query(description=LABEL_HELP)] = None,
    guidance: Guidance = None,
    top_p: TopP = None,
    temperature: Temperature = 1.0,
) -> Response:
    """Draw one sample; its `ETag` is the same for as long as the bytes are."""
    served = find_served(server, model)
    shape = settle_shape(served, label or None, top_p, guidance)
    spec = Spec(n=1, seed=seed, temperature=temperature, **shape._asdict())
    named = Named.of(served, spec)
    # What needs a key is for its owner's cache alone. A cache asks again each time, which costs
    # nothing, for with other weights the same address has another picture.
    whose = "private" if server.settings.api_keys else "public"
    headers = {"ETag": named.tag, "Cache-Control": f"{whose}, no-cache"}
    if named.known(tags):
        return Response(status_code=304, headers=headers)
    generation = begin(request, server, served.engine, spec, named.key)
    await draw_to_end(request, served.engine, generation)
    (image,) = generation.images
    if failed := cut_off(generation):
        raise failed
    config = generation.config
    async with client_of(request) as client:
        png = await server.writing.run(client, to_png, image.read(0, config.pixels), config)
    return Response(png, media_type="image/png", headers=headers)
