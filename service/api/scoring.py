"""Bits/dim of pictures and distributions of values: routes and replies."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from fastapi import APIRouter, Depends, Form, Request, Response
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from scanline.model.config import NO_LABEL, ModelConfig
from scanline.model.images import ImageError
from scanline.model.pixel_bits import pixel_bits, pixel_distributions
from scanline.service.api.dependencies import BODY_DEPENDENCIES, AppStateDep, find_model
from scanline.service.api.replies import example
from scanline.service.api.requests import DistributionRequest, PixelDistributionRequest, ScoreForm
from scanline.service.engine.protocol import EngineProtocol
from scanline.service.engine.queue_limits import CLOSED_MESSAGE, ClosedError
from scanline.service.errors import error_responses
from scanline.service.http.bodies import unique_form_fields
from scanline.service.http.disconnect import watch_client
from scanline.service.http.errors import ApiError
from scanline.service.http.forms import FormRoute
from scanline.service.http.responses import json_response
from scanline.service.images import read_image
from scanline.service.state.app_state import AppState
from scanline.service.state.registry import LoadedModel

_CHANNEL = {"channel": 0, "probabilities": [0.98, 0.001], "unconditional": [0.95, 0.004]}
_SCORE = {"index": 0, "bits": 493.9, "bits_per_dim": 0.63, "pixel_bits": [0.002, 1.25]}


class Score(BaseModel):
    """Bits of one picture: in total, per dimension, and per pixel."""

    model_config = example(**_SCORE)

    index: int
    bits: float
    bits_per_dim: float
    pixel_bits: Annotated[
        list[float] | None, Field(description="In raster order; null unless `per_pixel` is set.")
    ]


class ScoreReply(BaseModel):
    """Scores of pictures, in the order in which they were sent."""

    model_config = example(
        object="list", model="mnist", width=28, height=28, channels=1, data=[_SCORE]
    )

    object: Literal["list"] = "list"
    model: str
    width: int
    height: int
    channels: int
    data: list[Score]


class DistributionReply(BaseModel):
    """Distribution of the next value."""

    model_config = example(model="mnist", position=3, channel=0, probabilities=[0.98, 0.001])

    model: str
    position: Annotated[int, Field(description="Pixel of the value.")]
    channel: Annotated[int, Field(description="0 for grey or red, 1 for green, 2 for blue.")]
    probabilities: Annotated[list[float], Field(description="Of the 256 values, at temperature 1.")]


class ChannelDistribution(BaseModel):
    """Distribution of one channel of a pixel."""

    model_config = example(**_CHANNEL)

    channel: Annotated[int, Field(description="0 for grey or red, 1 for green, 2 for blue.")]
    probabilities: Annotated[list[float], Field(description="Of the 256 values, at temperature 1.")]
    unconditional: Annotated[
        list[float] | None,
        Field(description="The same without the label; null unless `unconditional` is set."),
    ]


class PixelDistributionReply(BaseModel):
    """Distributions of the channels of a pixel."""

    model_config = example(model="mnist", position=3, channels=[_CHANNEL])

    model: str
    position: Annotated[int, Field(description="The pixel.")]
    channels: Annotated[
        list[ChannelDistribution],
        Field(description="From channel 0 to that of the next value, each given those before it."),
    ]


STEPS_PER_CALL = 4096  # network steps, some hundred milliseconds, before the next request runs

router = APIRouter(prefix="/v1", dependencies=BODY_DEPENDENCIES, route_class=FormRoute)

_ERRORS = error_responses(403, 404, 413, 415, 429, 503)


@router.post(
    "/score", tags=["look inside"], dependencies=[Depends(unique_form_fields("image"))],
    response_model=ScoreReply, responses=_ERRORS,
)  # fmt: skip
async def score(
    request: Request,
    app_state: AppStateDep,
    form: Annotated[ScoreForm, Form(media_type="multipart/form-data")],
) -> Response:
    """Compute the exact bits/dim of pictures under a model, and the bits of each pixel.

    Repeat the field `image` for several pictures. Transparent parts count as black.
    """
    loaded = _find_open_model(app_state, form.model)
    config = loaded.checkpoint.model.config
    if len(form.image) > (limit := app_state.settings.max_images):
        raise ApiError(
            400, f"image: must be at most {limit} per request", param="image", code="too_many"
        )
    label = _class_index(config, form.label)

    canvases: list[NDArray[np.uint8]] = []
    parts: list[NDArray[np.float32]] = []
    batch = max(1, STEPS_PER_CALL // config.steps)
    async with watch_client(request) as client:
        for number, upload in enumerate(form.image):
            try:
                read = (read_image, upload.file, config, form.fit)
                canvases.append(await app_state.upload_pool.run(client, *read))
            except ImageError as error:
                if len(form.image) == 1:
                    raise
                raise ImageError(f"image {number}: {error}") from None
        for first in range(0, len(canvases), batch):
            stacked = np.stack(canvases[first : first + batch])
            measure = (pixel_bits, loaded.network, stacked, label)
            parts.append(await app_state.score_pool.run(client, *measure))
        bits = np.concatenate(parts)
        return await app_state.encode_pool.run(client, _scores, loaded.engine, bits, form.per_pixel)


def _scores(engine: EngineProtocol, bits: NDArray[np.float32], per_pixel: bool) -> Response:
    config = engine.config
    data = [
        Score(
            index=index,
            bits=float(round(total, 3)),
            bits_per_dim=float(round(total / config.dims, 4)),
            pixel_bits=[round(b, 4) for b in row.tolist()] if per_pixel else None,
        )
        for index, (total, row) in enumerate(zip(bits.sum(1, dtype=np.float64), bits, strict=True))
    ]
    reply = ScoreReply(
        model=engine.name,
        width=config.width,
        height=config.height,
        channels=config.channels,
        data=data,
    )
    return json_response(reply)


@router.post("/distribution", tags=["look inside"], responses=_ERRORS)
async def distribution(
    request: Request, app_state: AppStateDep, body: DistributionRequest
) -> DistributionReply:
    """Return the probability of each of the 256 values to be next, given the values so far."""
    loaded = _find_open_model(app_state, body.model)
    labels = [_class_index(loaded.engine.config, body.label)]
    ((*_, expected),) = await _distributions(request, app_state, loaded, body.values, labels)
    position, channel = divmod(len(body.values), loaded.engine.config.channels)
    return DistributionReply(
        model=loaded.engine.name,
        position=position,
        channel=channel,
        probabilities=_rounded(expected),
    )


@router.post("/distribution/pixel", tags=["look inside"], responses=_ERRORS)
async def pixel_distribution(
    request: Request, app_state: AppStateDep, body: PixelDistributionRequest
) -> PixelDistributionReply:
    """Return the distributions of all channels of a pixel, up to the channel of the next value.

    Each is given the values before it, so `values` may end with channels of the pixel itself: with
    its red and green, the reply has the distributions of red, green and blue.
    """
    loaded = _find_open_model(app_state, body.model)
    config = loaded.engine.config
    labels = [_class_index(config, body.label)] + [NO_LABEL] * body.unconditional
    rows = await _distributions(request, app_state, loaded, body.values, labels)
    return PixelDistributionReply(
        model=loaded.engine.name,
        position=len(body.values) // config.channels,
        channels=[
            ChannelDistribution(
                channel=channel,
                probabilities=_rounded(expected),
                unconditional=_rounded(rows[-1][channel]) if body.unconditional else None,
            )
            for channel, expected in enumerate(rows[0])
        ],
    )


async def _distributions(
    request: Request, app_state: AppState, loaded: LoadedModel, values: list[int], labels: list[int]
) -> list[NDArray[np.float32]]:
    """Return the distributions of a pixel's channels: ``[K, 256]`` for each label."""
    network, config = loaded.network, loaded.engine.config
    if len(values) >= config.values:
        raise ApiError(
            400,
            f"values: must be at most {config.values - 1}, because an image has {config.values} "
            f"values; got {len(values)}",
            param="values",
            code="too_many",
        )
    rows: list[NDArray[np.float32]] = []
    batch = max(1, STEPS_PER_CALL // config.steps)
    async with watch_client(request) as client:
        for first in range(0, len(labels), batch):
            measure = (pixel_distributions, network, values, labels[first : first + batch])
            rows.extend(await app_state.score_pool.run(client, *measure))
    return rows


def _rounded(probabilities: NDArray[np.float32]) -> list[float]:
    """Return probabilities with six significant digits."""
    return [float(f"{p:.6g}") for p in probabilities]


def _find_open_model(app_state: AppState, name: str | None) -> LoadedModel:
    """Find a model by name; raises ``ClosedError`` if the server is shutting down."""
    loaded = find_model(app_state, name)
    if loaded.engine.queue.closed:
        raise ClosedError(CLOSED_MESSAGE)
    return loaded


def _class_index(config: ModelConfig, label: int | str | None) -> int:
    """Return the index of a class by name or number, -1 for none; 400 if there is no such class."""
    try:
        return config.class_index(label)
    except ValueError as error:
        raise ApiError(400, str(error), param="label", code="unknown_class") from None
