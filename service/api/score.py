"""What a model says of pictures: exact bits/dim, bits of each pixel, and the value to come."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, TypeVar

import numpy as np
from anyio import to_thread
from fastapi import APIRouter, Depends, Form
from numpy.typing import NDArray

from scanline.model.likelihood import next_value, pixel_bits
from scanline.model.pictures import PictureError
from scanline.service.api.lookup import Server, bearer, find_label, find_served
from scanline.service.api.replies import DistributionReply, Score, ScoreReply
from scanline.service.api.requests import DistributionRequest, ScoreForm
from scanline.service.http.errors import ERRORS, ApiError
from scanline.service.pictures import read_picture
from scanline.service.server import Scanline

MAX_WAITING = 32  # computations; one runs at a time, so that they cannot crowd out drawing

T = TypeVar("T")
router = APIRouter(prefix="/v1", dependencies=[Depends(bearer)], responses=ERRORS)


@router.post("/score", tags=["look inside"])
async def score(
    server: Server, form: Annotated[ScoreForm, Form(media_type="multipart/form-data")]
) -> ScoreReply:
    """Measure what pictures cost under a model: exact bits/dim, and the bits of each pixel.

    Repeat the field `image` for several. Transparent parts count as black.
    """
    served = find_served(server, form.model)
    config = served.network.config
    if len(form.image) > (most := server.settings.max_images):
        raise ApiError(400, f"image: at most {most} a request", param="image", code="too_many")
    label = find_label(config, form.label)

    def measure() -> NDArray[np.float32]:
        canvases = []
        for number, upload in enumerate(form.image):
            try:
                canvases.append(read_picture(upload.file, config, form.fit))
            except PictureError as error:
                if len(form.image) == 1:
                    raise
                raise PictureError(f"image {number}: {error}") from None
        return pixel_bits(served.network, np.stack(canvases), label)

    bits = await _in_turn(server, measure)
    totals = bits.sum(1, dtype=np.float64)
    return ScoreReply(
        model=served.engine.name,
        width=config.width,
        height=config.height,
        channels=config.channels,
        data=[
            Score(
                index=index,
                bits=float(round(total, 3)),
                bits_per_dim=float(round(total / config.dims, 4)),
                pixel_bits=[round(float(b), 4) for b in row] if form.per_pixel else None,
            )
            for index, (total, row) in enumerate(zip(totals, bits, strict=True))
        ],
    )


@router.post("/distribution", tags=["look inside"])
async def distribution(server: Server, body: DistributionRequest) -> DistributionReply:
    """Say how likely each of the 256 intensities is to come next, given the values so far."""
    served = find_served(server, body.model)
    config = served.network.config
    if len(body.values) >= config.values:
        raise ApiError(
            400,
            f"values: an image has {config.values} of them, so at most {config.values - 1} can "
            f"come before the next; there are {len(body.values)}",
            param="values",
            code="too_many",
        )
    label = find_label(config, body.label)
    expected = await _in_turn(server, partial(next_value, served.network, body.values, label))
    position, channel = divmod(len(body.values), config.channels)
    return DistributionReply(
        model=served.engine.name,
        position=position,
        channel=channel,
        probabilities=[float(f"{p:.6g}") for p in expected],
    )


async def _in_turn(server: Scanline, compute: Callable[[], T]) -> T:
    """Run a computation in a thread once those before it are done; 429 where too many wait."""
    turns = server.turns
    if turns.statistics().tasks_waiting >= MAX_WAITING:
        raise ApiError(
            429,
            "too many pictures are being measured; try again in a second",
            code="queue_full",
            headers={"Retry-After": "1"},
        )
    return await to_thread.run_sync(compute, limiter=turns)
