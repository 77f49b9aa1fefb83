"""Preview of a shared link (``og:image``, title, description), which chat programs show."""

from __future__ import annotations

import base64
import binascii
import html
import io
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, NamedTuple
from urllib.parse import urlencode

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from scanline.model.config import ModelConfig
from scanline.model.images import ImageError
from scanline.model.noise import MAX_SEED, RANDOM
from scanline.service.api.cached_png import ClientETags, png_response
from scanline.service.api.dependencies import AppStateDep, find_model
from scanline.service.api.requests import SamplingFields
from scanline.service.api.submission import build_spec
from scanline.service.engine.generation import Generation
from scanline.service.http.errors import ApiError
from scanline.service.images import read_masked_image, to_grid
from scanline.service.recipes.png_encoding import encode_grid

MAX_PREVIEW_IMAGES = 4  # more images would be too small in a chat
MAX_PAGE_SEED = 2**53 - 1  # the largest exact integer in JavaScript
_SEED = re.compile(r"[0-9]{1,16}")
PREVIEW_SIDE = 600  # pixels, rounded down to a multiple of the image's side
MAX_AGE_SECONDS = 600  # how long caches keep a preview, even if the model changes
MAX_IMAGE_TEXT = 20_000  # base64 characters of a picture in a link

router = APIRouter()


class Preview(NamedTuple):
    """Text of a view's preview; ``alt`` describes the image."""

    title: str
    description: str
    alt: str


_LANDING = Preview(
    "Scanline: pictures, one pixel at a time",
    "A language model writes one word at a time; this one draws one pixel at a time.",
    "Pictures that the model drew",
)
_PREVIEWS = {
    "complete": Preview(
        "What else could it be? – Scanline",
        "The top of a picture, and some ways in which the model completes it. Draw your own.",
        "Completions of one picture, all with the same known part",
    ),
    "play": Preview(
        "Guess it from the upper half – Scanline",
        "Five pictures, of which you see the upper halves. The model guesses too.",
        "The upper halves of pictures",
    ),
    "watch": Preview(
        "Watch it draw – Scanline",
        "See how likely each value is, and the dice that choose one.",
        "A picture that the model drew",
    ),
}
_DEFAULT = {"view": "start", "seed": "7", "n": "4"}  # preview of the landing page
_RANDOM_CLASSES = ("start", "play")  # views that show pictures of random classes


class LinkQuery(SamplingFields):
    """Query parameters of a link that change its image; others are ignored."""

    model_config = ConfigDict(extra="ignore")

    seed: Annotated[int, Field(ge=0, le=MAX_SEED)]
    n: Annotated[int, Field(ge=1)] = 1
    model: str | None = None
    label: str | None = None
    view: str = "draw"
    image: Annotated[str | None, Field(max_length=MAX_IMAGE_TEXT)] = None


def og_tags(request: Request) -> str:
    """Return the HTML tags that describe a link: title, description and preview image.

    There is no image if the API requires a key, which the programs that fetch previews do not have.
    """
    query = request.query_params
    preview = _PREVIEWS.get(query.get("view", ""), _LANDING)
    tags = _tag("og:title", preview.title) + _tag("og:description", preview.description)
    if request.app.state.scanline.settings.api_key is not None:
        return tags
    address = f"{request.base_url}card.png?{urlencode(_image_query(query))}"
    card = '<meta name="twitter:card" content="summary_large_image">'
    return tags + _tag("og:image", address) + _tag("og:image:alt", preview.alt) + card


def _tag(name: str, content: str) -> str:
    return f'<meta property="{name}" content="{html.escape(content)}">'


def _image_query(query: Mapping[str, str]) -> dict[str, str]:
    """Return the query of a link's preview image; the landing page's if the link draws nothing."""
    seed = query.get("seed", "")
    if not _SEED.fullmatch(seed) or int(seed) > MAX_PAGE_SEED:
        return _DEFAULT | {name: query[name] for name in ("model",) if name in query}
    known = {name: query[name] for name in LinkQuery.model_fields if name in query}
    if query.get("view") == "play":
        known["n"] = str(MAX_PREVIEW_IMAGES)
    return known


def _upper_half(image: NDArray[np.uint8], config: ModelConfig) -> NDArray[np.uint8]:
    """Return an image ``[T, C]`` with a grey lower half, which visitors have to guess."""
    hidden = image.copy()
    hidden[config.width * (config.height // 2) :] = 48
    return hidden


def _read_link_image(text: str, config: ModelConfig) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Decode the picture of a link: its values ``[T, C]``, and the known pixels ``[T]``.

    Raises:
        ImageError: If it is no picture, or nothing of it is left to draw.
    """
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise ImageError("image is not base64", "image") from None
    return read_masked_image(io.BytesIO(data), None, None, "exact", config)


@router.get("/card.png", include_in_schema=False)
async def og_image(
    request: Request, app_state: AppStateDep, link: Annotated[LinkQuery, Query()], tags: ClientETags
) -> Response:
    """Return the first images of a link, enlarged; 404 if the API requires a key."""
    if app_state.settings.api_key is not None:
        raise ApiError(404, "previews need a server without an API key", code="not_found")
    n = min(link.n, MAX_PREVIEW_IMAGES, app_state.settings.max_images)
    loaded = find_model(app_state, link.model)
    label = link.label or None
    if link.view in _RANDOM_CLASSES and loaded.engine.config.classes:
        label = RANDOM
    options = link.sampling_options(label=label)
    spec = build_spec(app_state, loaded, options, n=n, seed=link.seed)
    if link.image is not None:
        canvas, known = await app_state.upload_pool.run_for(
            request, _read_link_image, link.image, loaded.engine.config
        )
        spec = replace(spec, canvas=canvas, known=known)

    def encode(generation: Generation) -> bytes:
        config = generation.config
        scale = max(1, PREVIEW_SIDE // (config.width * (1 if n == 1 else 2)))
        if link.view != "play":
            return encode_grid(generation, scale)
        images = (image.read(0, config.pixels) for image in generation.images)
        return to_grid([_upper_half(image, config) for image in images], config, scale)

    caching = f"public, max-age={MAX_AGE_SECONDS}"
    return await png_response(request, app_state, loaded, spec, tags, caching, encode)
