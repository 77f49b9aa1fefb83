"""JSON replies with scores and distributions: pydantic models, documented at ``/docs``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from scanline.service.api.replies import example

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
