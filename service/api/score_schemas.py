"""The shapes of what a model says of pictures: scores, and the value to come."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import UploadFile
from pydantic import BaseModel, ConfigDict, Field

from scanline.service.api.schemas import LABEL_HELP, Model
from scanline.service.pictures import Fit

_SCORE: dict[str, Any] = {"index": 0, "bits": 493.9, "bits_per_dim": 0.63, "pixel_bits": None}


class ScoreForm(BaseModel):
    """Measure pictures."""

    model_config = ConfigDict(
        extra="forbid",
        arbitrary_types_allowed=True,
        json_schema_extra={"examples": [{"image": ["(a PNG's bytes)"], "label": "7"}]},
    )

    image: Annotated[
        list[UploadFile],
        Field(min_length=1, description="One picture, or several under the same name."),
    ]
    fit: Annotated[Fit, Field(description="For a picture of another size.")] = "exact"
    model: Model = None
    label: Annotated[str | None, Field(description=LABEL_HELP)] = None
    per_pixel: Annotated[bool, Field(description="Give the bits of each pixel too.")] = False


class Score(BaseModel):
    """What one picture costs: its bits, the same per dimension, and those of each pixel."""

    model_config = ConfigDict(json_schema_extra={"examples": [_SCORE]})

    index: int
    bits: float
    bits_per_dim: float
    pixel_bits: Annotated[
        list[float] | None, Field(description="In raster order, only with `per_pixel`.")
    ] = None


class ScoreReply(BaseModel):
    """Pictures measured, in the order they were sent."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "object": "list",
                    "model": "mnist",
                    "width": 28,
                    "height": 28,
                    "channels": 1,
                    "data": [_SCORE],
                }
            ]
        }
    )

    object: Literal["list"] = "list"
    model: str
    width: int
    height: int
    channels: int
    data: list[Score]


class DistributionRequest(BaseModel):
    """Ask what may come next."""

    model_config = ConfigDict(
        extra="forbid", strict=True, json_schema_extra={"examples": [{"values": [0, 0, 0]}]}
    )

    values: Annotated[
        list[Annotated[int, Field(ge=0, le=255)]],
        Field(
            max_length=2**16 * 3,
            description="The values so far, in raster order with the channels innermost.",
        ),
    ]
    model: Model = None
    label: Annotated[int | str | None, Field(description=LABEL_HELP)] = None


class DistributionReply(BaseModel):
    """The model's distribution for the next value."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"model": "mnist", "position": 3, "channel": 0, "probabilities": [0.98, 0.001]}
            ]
        }
    )

    model: str
    position: Annotated[int, Field(description="The pixel that the value belongs to.")]
    channel: Annotated[int, Field(description="0 for grey or red, 1 for green, 2 for blue.")]
    probabilities: Annotated[
        list[float], Field(description="Of the 256 intensities, at temperature 1.")
    ]
