"""The picture that chat programs show beside a shared link, drawn from what the link says."""

from __future__ import annotations

import html
import re
from typing import Annotated
from urllib.parse import urlencode

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from scanline.model.config import ModelConfig
from scanline.model.noise import MAX_SEED
from scanline.service.api.cached_png import ClientETags, png_response
from scanline.service.api.dependencies import AppStateDep, find_model
from scanline.service.api.requests import SamplingFields
from scanline.service.api.specs import build_spec
from scanline.service.http.errors import ApiError
from scanline.service.images import to_grid

MOST = 4  # images: a link may be of many more, which a chat would show too small
MAX_PAGE_SEED = 2**53 - 1  # the largest whole number that the page's language has
_SEED = re.compile(r"[0-9]{1,16}")
SIDE = 600  # pixels, or a little less
FRESH_SECONDS = 600  # for which a cache need not ask whether the weights are others

router = APIRouter()


class LinkQuery(SamplingFields):
    """A link's fields, as far as they matter here."""

    model_config = ConfigDict(extra="ignore")

    seed: Annotated[int, Field(ge=0, le=MAX_SEED)]
    n: Annotated[int, Field(ge=1)] = 1
    model: str | None = None
    label: str | None = None


def og_image_tags(request: Request) -> str:
    """Give the tags that name a link's picture; none where the link is of no drawing.

    Nor of a seed that the page cannot draw, nor where the API wants a key, which those who fetch
    such pictures do not have.
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
async def card(
    request: Request, app_state: AppStateDep, link: Annotated[LinkQuery, Query()], tags: ClientETags
) -> Response:
    """Draw the first images of a link, enlarged; 404 where the API wants a key."""
    if app_state.settings.api_key is not None:
        raise ApiError(404, "this server draws for those who have its key", code="not_found")
    n = min(link.n, MOST, app_state.settings.max_images)
    loaded = find_model(app_state, link.model)
    options = link.sampling_options(label=link.label or None)
    spec = build_spec(app_state, loaded, options, n=n, seed=link.seed)

    def encode(images: list[NDArray[np.uint8]], config: ModelConfig) -> bytes:
        side = config.width * (1 if n == 1 else 2)
        return to_grid(images, config, max(1, SIDE // side))

    caching = f"public, max-age={FRESH_SECONDS}"
    return await png_response(request, app_state, loaded, spec, tags, caching, encode)
