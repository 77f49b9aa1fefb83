"""Request bodies and their fields: pydantic models, documented at ``/docs``."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal

from fastapi import UploadFile
from pydantic import ConfigDict, FailFast, Field, WithJsonSchema

from scanline.model.config import MAX_GUIDANCE
from scanline.model.images import Fit
from scanline.model.noise import MAX_SEED
from scanline.model.particles import MAX_PARTICLES
from scanline.model.sampling import MAX_TEMPERATURE, SamplingOptions
from scanline.service.http.bodies import (
    ACCEPT_WHOLE_FLOAT,
    ACCEPT_WHOLE_FLOATS,
    RequestBody,
    document_form,
)

Granularity = Literal["auto", "row", "pixel"]
Output = Literal["png", "values"]

Model = Annotated[
    str | None, Field(description="A name from `/v1/models`; the first one if left out.")
]
Count = Annotated[int, Field(ge=1, description="Number of images."), ACCEPT_WHOLE_FLOAT]
Seed = Annotated[
    int | None,
    Field(
        ge=0,
        le=MAX_SEED,
        description="Image j is drawn with seed + j. The same seed gives the same bytes. Random if "
        "left out; the reply contains it in either case.",
    ),
    ACCEPT_WHOLE_FLOAT,
]
Temperature = Annotated[
    float,
    Field(
        ge=0,
        le=MAX_TEMPERATURE,
        allow_inf_nan=False,
        description="1 samples from the model's distribution, lower values give more typical "
        "images (very low ones may be empty), 0 takes the most likely value.",
    ),
]
TopP = Annotated[
    float | None,
    Field(
        gt=0,
        le=1,
        description="Keep only the most likely values, up to this total probability; 1 keeps all. "
        "The model's default (see `/v1/models`) if left out.",
    ),
]
Guidance = Annotated[
    float | None,
    Field(
        ge=0,
        le=MAX_GUIDANCE,
        description="Strength of the label: 1 is the plain model, more gives clearer examples of "
        "the class. The model's default if left out. A guided image takes two slots.",
    ),
]
ParticleCount = Annotated[
    int,
    Field(
        ge=1,
        le=MAX_PARTICLES,
        description="Number of slots that draw one image in parallel, so that known pixels after a "
        "hole influence it. With 1, only the pixels above and to the left do.",
    ),
    ACCEPT_WHOLE_FLOAT,
]
# Described as in OpenAPI 3.0, because most client generators do not know the form of 3.1.
Upload = Annotated[UploadFile, WithJsonSchema({"type": "string", "format": "binary"})]
CLASS_HELP = "A class by name or number (see `/v1/models`); no class if left out."
LABEL_HELP = (
    "A class by name or number (see `/v1/models`), or `random` for a class chosen by each image's "
    "seed; no particular class if left out."
)


class SamplingFields(RequestBody):
    """Sampling options shared by all drawing requests.

    ``SamplingOptions`` (model/sampling.py) explains them. For a new option, see CONTRIBUTING.md, "A
    sampling option".
    """

    temperature: Temperature = 1.0
    top_p: TopP = None
    guidance: Guidance = None

    def sampling_options(self, **others: Any) -> SamplingOptions:
        """Build the sampling options from the fields and from ``others``, which are not fields."""
        names = {field.name for field in fields(SamplingOptions)} & type(self).model_fields.keys()
        given = {name: getattr(self, name) for name in names} | others
        return SamplingOptions(**{name: v for name, v in given.items() if v is not None})


class SampleQuery(SamplingFields):
    """Query of a sample's URL. Unknown parameters are ignored, as on every GET route."""

    model_config = ConfigDict(extra="ignore")

    label: Annotated[str | None, Field(description=LABEL_HELP)] = None


class DrawRequest(SamplingFields):
    """Fields that samples and completions share."""

    model: Model = None
    n: Count = 1
    label: Annotated[int | str | None, Field(description=LABEL_HELP), ACCEPT_WHOLE_FLOAT] = None
    seed: Seed = None
    stream: Annotated[bool, Field(description="Reply with server-sent events.")] = False
    granularity: Annotated[
        Granularity,
        Field(
            description="For streams: size of an update within an event: a pixel, a row, or all "
            "new pixels of an image (`auto`). `row` also holds back unfinished rows."
        ),
    ] = "auto"
    output: Annotated[
        Output,
        Field(description="Form of an image in JSON: base64 PNG, or a flat list of pixel values."),
    ] = "png"


class SampleRequest(DrawRequest):
    """Request to draw images."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={"examples": [{"n": 4, "label": "7", "seed": 1}]},
    )


class CompletionForm(DrawRequest):
    """Request to complete a picture: keep its known part, and draw the rest ``n`` times."""

    model_config = ConfigDict(
        json_schema_extra=document_form(image="(a PNG's bytes)", known_rows=14, n=4),
    )

    image: Annotated[Upload, Field(description="PNG, JPEG, WebP, GIF, BMP or PPM.")]
    mask: Annotated[
        Upload | None,
        Field(
            description="A picture with the shape of `image`, or with the model's size. Its "
            "transparent pixels (alpha 0) are drawn."
        ),
    ] = None
    known_rows: Annotated[
        int | None,
        Field(ge=0, description="Number of rows from the top to keep; the rest is drawn."),
        ACCEPT_WHOLE_FLOAT,
    ] = None
    fit: Annotated[
        Fit, Field(description="For a picture of another size: refuse, crop, or add a border.")
    ] = "exact"
    label: Annotated[str | None, Field(description=LABEL_HELP)] = None
    particles: ParticleCount = 1


class ScoreForm(RequestBody):
    """Request to measure the bits/dim of pictures."""

    model_config = ConfigDict(
        json_schema_extra=document_form(image=["(a PNG's bytes)"], label="7"),
    )

    image: Annotated[
        list[Upload],
        Field(min_length=1, description="A picture; repeat the field for several."),
    ]
    fit: Annotated[
        Fit, Field(description="For a picture of another size: refuse, crop, or add a border.")
    ] = "exact"
    model: Model = None
    label: Annotated[str | None, Field(description=CLASS_HELP)] = None
    per_pixel: Annotated[bool, Field(description="Include the bits of each pixel.")] = False


class VerifyForm(RequestBody):
    """Request to verify a picture by the recipe in its file."""

    model_config = ConfigDict(json_schema_extra=document_form(image="(a PNG's bytes)"))

    image: Annotated[Upload, Field(description="A PNG that Scanline saved.")]
    source: Annotated[
        Upload | None,
        Field(description="For a completion: the original picture, with the same part marked."),
    ] = None
    mask: Annotated[
        Upload | None, Field(description="The mask of `source`, as for `/v1/completions`.")
    ] = None
    known_rows: Annotated[
        int | None, Field(ge=0, description="Number of rows of `source` that were kept.")
    ] = None
    fit: Annotated[Fit, Field(description="How `source` was fitted to the model's size.")] = "exact"


class DistributionRequest(RequestBody):
    """Request for the distribution of the next value."""

    model_config = ConfigDict(strict=True, json_schema_extra={"examples": [{"values": [0, 0, 0]}]})

    values: Annotated[
        list[Annotated[int, Field(ge=0, le=255)]],
        FailFast(),  # because reporting a megabyte of wrong values would take seconds
        Field(description="The values so far, in raster order with the channels innermost."),
        ACCEPT_WHOLE_FLOATS,
    ]
    model: Model = None
    label: Annotated[int | str | None, Field(description=CLASS_HELP), ACCEPT_WHOLE_FLOAT] = None


class PixelDistributionRequest(DistributionRequest):
    """Request for the distributions of the channels of a pixel."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={
            "examples": [{"values": [0, 0, 0], "label": "7", "unconditional": True}]
        },
    )

    unconditional: Annotated[
        bool, Field(description="Include the distributions without the label, for guidance.")
    ] = False
