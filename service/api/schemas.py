"""Request and reply bodies, validated by pydantic and shown at ``/docs``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import UploadFile
from pydantic import BaseModel, ConfigDict, Field

from scanline.model.noise import MAX_SEED
from scanline.service.http.events import Granularity
from scanline.service.pictures import Fit

MAX_TEMPERATURE = 2.0

Model = Annotated[str | None, Field(description="A name from `/v1/models`; the first if left out.")]
Count = Annotated[int, Field(ge=1, description="Images to draw.")]
Seed = Annotated[
    int | None,
    Field(
        ge=0,
        le=MAX_SEED,
        description="Image j is drawn with seed + j: the same seed gives the same bytes. "
        "Chosen at random if left out, and named in the reply either way.",
    ),
]
Temperature = Annotated[
    float,
    Field(
        ge=0,
        le=MAX_TEMPERATURE,
        allow_inf_nan=False,
        description="1 draws from the model as it is, less is safer, 0 takes the likeliest value.",
    ),
]
Output = Annotated[
    Literal["png", "values"],
    Field(description="How JSON holds an image: base64 PNG, or a flat list of pixel values."),
]
LABEL_HELP = "A class by name or number (see `/v1/models`); left out, anything may come."


class SampleRequest(BaseModel):
    """Draw images from nothing."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"n": 4, "label": "7", "seed": 1}]},
    )

    model: Model = None
    n: Count = 1
    label: Annotated[int | str | None, Field(description=LABEL_HELP)] = None
    seed: Seed = None
    temperature: Temperature = 1.0
    stream: Annotated[bool, Field(description="Reply with server-sent events.")] = False
    granularity: Annotated[
        Granularity, Field(description="Of a stream: an update a pixel, a row, or what is new.")
    ] = "auto"
    output: Output = "png"


class CompletionForm(BaseModel):
    """Complete a picture: keep its known part, draw the rest ``n`` times."""

    model_config = ConfigDict(
        extra="forbid",
        arbitrary_types_allowed=True,
        json_schema_extra={"examples": [{"image": "(a PNG's bytes)", "known_rows": 14, "n": 4}]},
    )

    image: Annotated[UploadFile, Field(description="PNG, JPEG, WebP, GIF, BMP, TIFF or PPM.")]
    mask: Annotated[
        UploadFile | None,
        Field(description="A picture of the same size: draw where it is transparent (alpha 0)."),
    ] = None
    known_rows: Annotated[
        int | None, Field(ge=0, description="Keep this many rows from the top, draw the rest.")
    ] = None
    fit: Annotated[
        Fit,
        Field(description="For a picture of another size: refuse it, crop it, or add a border."),
    ] = "exact"
    model: Model = None
    n: Count = 1
    label: Annotated[str | None, Field(description=LABEL_HELP)] = None
    seed: Seed = None
    temperature: Temperature = 1.0
    stream: bool = False
    granularity: Granularity = "auto"
    output: Output = "png"


def _example(**fields: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [fields]})


_PROBLEM = {
    "message": "n: Input should be greater than or equal to 1",
    "type": "invalid_request_error",
    "param": "n",
    "code": "greater_than_equal",
}
_IMAGE = {
    "index": 0, "seed": 1, "status": "finished", "finish_reason": "length", "position": 784,
    "bits_per_dim": 0.61, "png": "iVBORw0KGgo…",
}  # fmt: skip
_USAGE = {"pixels": 784, "seconds": 0.1, "queue_seconds": 0.001, "pixels_per_second": 7840.0}
_MODEL = {
    "id": "mnist", "object": "model", "created": 1700000000, "owned_by": "scanline", "width": 28,
    "height": 28, "channels": 1, "classes": ["0", "1"], "bits_per_dim": 0.61, "steps": 784,
    "order": "pixel", "parameters": 1394176, "backend": "native", "slots": 64,
}  # fmt: skip


class ErrorBody(BaseModel):
    """What went wrong, in a sentence that says what to do."""

    model_config = _example(**_PROBLEM)

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(BaseModel):
    """The one shape of every error."""

    model_config = _example(error=_PROBLEM)

    error: ErrorBody


class ImageReply(BaseModel):
    """One image: ``png`` or ``values`` once it is finished, and its exact bits/dim."""

    model_config = _example(**_IMAGE)

    index: int
    seed: int
    status: str
    finish_reason: str | None
    position: Annotated[int, Field(description="Pixels decided.")]
    bits_per_dim: float | None
    png: str | None = None
    values: list[int] | None = None


class Usage(BaseModel):
    """What a generation took."""

    model_config = _example(**_USAGE)

    pixels: int
    seconds: float
    queue_seconds: float
    pixels_per_second: float


class GenerationReply(BaseModel):
    """A generation and its images."""

    model_config = _example(
        id="gen_5f2c", object="generation", model="mnist", status="finished", width=28, height=28,
        channels=1, images=[_IMAGE], usage=_USAGE, error=None,
    )  # fmt: skip

    id: str
    object: Literal["generation"] = "generation"
    model: str
    status: str
    width: int
    height: int
    channels: int
    images: list[ImageReply]
    usage: Usage
    error: str | None = None


class ModelReply(BaseModel):
    """A model being served."""

    model_config = _example(**_MODEL)

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "scanline"
    width: int
    height: int
    channels: int
    classes: list[str]
    bits_per_dim: Annotated[
        float | None, Field(description="On the test set if measured, else in training.")
    ]
    steps: Annotated[int, Field(description="Steps of the network that one image takes.")]
    order: str
    parameters: int
    backend: str
    slots: int


class ModelList(BaseModel):
    """All models being served."""

    model_config = _example(object="list", data=[_MODEL])

    object: Literal["list"] = "list"
    data: list[ModelReply]


_ERROR: dict[str, Any] = {"model": ErrorReply}
ERRORS: dict[int | str, dict[str, Any]] = {
    400: _ERROR | {"description": "Something in the request is wrong."},
    401: _ERROR | {"description": "The API key is missing or wrong."},
    404: _ERROR | {"description": "There is no such model or generation."},
    406: _ERROR | {"description": "No media type asked for can be given."},
    413: _ERROR | {"description": "The upload is too large."},
    429: _ERROR | {"description": "The queue is full; `Retry-After` says for how long."},
    500: _ERROR | {"description": "Drawing failed."},
    503: _ERROR | {"description": "The server is loading or shutting down."},
}
