"""Preview image (``og:image``) of a shared link, which chat programs show next to it."""

from __future__ import annotations

import html
import re
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from pydantic import ConfigDict, Field

from scanline.model.noise import MAX_SEED
from scanline.service.api.cached_png import ClientETags, png_response
from scanline.service.api.dependencies import AppStateDep, find_model
from scanline.service.api.requests import SamplingFields
from scanline.service.api.specs import build_spec
from scanline.service.engine.generation import Generation
from scanline.service.http.errors import ApiError
from scanline.service.recipes.png_writer import PngWriter

MAX_PREVIEW_IMAGES = 4  # more images would be too small in a chat
MAX_PAGE_SEED = 2**53 - 1  # the largest exact integer in JavaScript
_SEED = re.compile(r"[0-9]{1,16}")
PREVIEW_SIDE = 600  # pixels, rounded down to a multiple of the image's side
MAX_AGE_SECONDS = 600  # for which caches keep a preview, even if the model changes

router = APIRouter()


class LinkQuery(SamplingFields):
    """Query parameters of a link that change its image; others are ignored."""

    model_config = ConfigDict(extra="ignore")

    seed: Annotated[int, Field(ge=0, le=MAX_SEED)]
    n: Annotated[int, Field(ge=1)] = 1
    model: str | None = None
    label: str | None = None


def og_image_tags(request: Request) -> str:
    """Return the HTML tags that name the preview image of a link.

    Returns:
        "" if the link has no seed, or one that the page cannot represent, or if the API requires a
        key, which the programs that fetch previews do not have.
    """
    query = request.query_params
    seed = query.get("seed", "")
    if (
        not _SEED.fullmatch(seed)
        or int(seed) > MAX_PAGE_SEED
        or request.app.state.scanline.settings.api_key is not None
    ):
        return ""
    known = {name: query[name] for name in LinkQuery.model_fields if name in query}
    address = html.escape(f"{request.base_url}card.png?{urlencode(known)}")
    return (
        f'<meta property="og:image" content="{address}">'
        '<meta name="twitter:card" content="summary_large_image">'
    )


@router.get("/card.png", include_in_schema=False)
async def og_image(
    request: Request, app_state: AppStateDep, link: Annotated[LinkQuery, Query()], tags: ClientETags
) -> Response:
    """Return the first images of a link, enlarged; 404 if the API requires a key."""
    if app_state.settings.api_key is not None:
        raise ApiError(404, "previews need a server without an API key", code="not_found")
    n = min(link.n, MAX_PREVIEW_IMAGES, app_state.settings.max_images)
    loaded = find_model(app_state, link.model)
    options = link.sampling_options(label=link.label or None)
    spec = build_spec(app_state, loaded, options, n=n, seed=link.seed)

    def encode(writer: PngWriter, generation: Generation) -> bytes:
        side = generation.config.width * (1 if n == 1 else 2)
        return writer.encode_grid(generation, max(1, PREVIEW_SIDE // side))

    caching = f"public, max-age={MAX_AGE_SECONDS}"
    return await png_response(request, app_state, loaded, spec, tags, caching, encode)
