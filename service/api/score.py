"""What a model says of pictures: exact bits/dim, bits of each pixel, and the value to come."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from fastapi import APIRouter, Depends, Form, Request, Response
from numpy.typing import NDArray

from scanline.model.config import ModelConfig
from scanline.model.likelihood import next_value, pixel_bits
from scanline.model.pictures import PictureError
from scanline.service.api.lookup import EVERY_ROUTE, Server, find_served
from scanline.service.api.replies import DistributionReply, Score, ScoreReply
from scanline.service.api.requests import DistributionRequest, ScoreForm
from scanline.service.http.bodies import once_each
from scanline.service.http.errors import ApiError, errors
from scanline.service.http.media import json_reply
from scanline.service.http.waiting import client_of
from scanline.service.pictures import read_picture
from scanline.service.queue import CLOSED, ClosedError
from scanline.service.server import Scanline, Served
from scanline.service.workshop import Workshop

STEPS_AT_ONCE = 4096  # of the network: others get their turn some hundred milliseconds later

router = APIRouter(prefix="/v1", dependencies=EVERY_ROUTE)

_ERRORS = errors(403, 404, 413, 415, 429, 503)


@router.post(
    "/score", tags=["look inside"], dependencies=[Depends(once_each("image"))],
    response_model=ScoreReply, responses=_ERRORS,
)  # fmt: skip
async def score(
    request: Request,
    server: Server,
    form: Annotated[ScoreForm, Form(media_type="multipart/form-data")],
) -> Response:
    """Measure what pictures cost under a model: exact bits/dim, and the bits of each pixel.

    Repeat the field `image` for several. Transparent parts count as black.
    """
    served = _find_measured(server, form.model)
    config = served.checkpoint.model.config
    if len(form.image) > (most := server.settings.max_images):
        raise ApiError(400, f"image: at most {most} a request", param="image", code="too_many")
    label = _find_label(config, form.label)

    canvases: list[NDArray[np.uint8]] = []
    parts: list[NDArray[np.float32]] = []
    at_once = max(1, STEPS_AT_ONCE // config.steps)
    async with client_of(request) as client:
        for number, upload in enumerate(form.image):
            try:
                read = (read_picture, upload.file, config, form.fit)
                canvases.append(await server.reading.run(client, *read))
            except PictureError as error:
                if len(form.image) == 1:
                    raise
                raise PictureError(f"image {number}: {error}") from None
        for first in range(0, len(canvases), at_once):
            some = np.stack(canvases[first : first + at_once])
            measure = (pixel_bits, served.checkpoint.model, some, label)
            parts.append(await server.measuring.run(client, *measure))
        bits = np.concatenate(parts)
        return await server.writing.run(client, _scores, served.engine, bits, form.per_pixel)


def _scores(engine: Workshop, bits: NDArray[np.float32], per_pixel: bool) -> Response:
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
    return json_reply(reply)


@router.post("/distribution", tags=["look inside"], responses=_ERRORS)
async def distribution(
    request: Request, server: Server, body: DistributionRequest
) -> DistributionReply:
    """Say how likely each of the 256 intensities is to come next, given the values so far."""
    served = _find_measured(server, body.model)
    config = served.checkpoint.model.config
    if len(body.values) >= config.values:
        raise ApiError(
            400,
            f"values: an image has {config.values} of them, so at most {config.values - 1} can "
            f"come before the next; there are {len(body.values)}",
            param="values",
            code="too_many",
        )
    label = _find_label(config, body.label)
    async with client_of(request) as client:
        measure = (next_value, served.checkpoint.model, body.values, label)
        expected = await server.measuring.run(client, *measure)
    position, channel = divmod(len(body.values), config.channels)
    return DistributionReply(
        model=served.engine.name,
        position=position,
        channel=channel,
        probabilities=[float(f"{p:.6g}") for p in expected],
    )


def _find_measured(server: Scanline, name: str | None) -> Served:
    """Find the model whose likelihoods are asked for; 503 once no more work is taken."""
    served = find_served(server, name)
    if served.engine.queue.closed:
        raise ClosedError(CLOSED)
    return served


def _find_label(config: ModelConfig, label: int | str | None) -> int:
    """Find a class by name or number, -1 for none; 400 where the model has no such class."""
    try:
        return config.class_number(label)
    except ValueError as error:
        raise ApiError(400, str(error), param="label", code="unknown_class") from None
