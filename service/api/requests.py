"""What may be asked for: bodies, validated by pydantic and shown at ``/docs``."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import UploadFile
from pydantic import ConfigDict, FailFast, Field, WithJsonSchema

from scanline.model.config import MAX_GUIDANCE
from scanline.model.images import Fit
from scanline.model.noise import MAX_SEED
from scanline.model.particles import MAX_PARTICLES
from scanline.service.http.bodies import RequestBody, document_form

MAX_TEMPERATURE = 2.0

Granularity = Literal["auto", "row", "pixel"]
Output = Literal["png", "values"]

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
        description="1 draws from the model as it is, less is plainer, and much less may leave "
        "the sheet empty; 0 takes the likeliest value.",
    ),
]
TopP = Annotated[
    float | None,
    Field(
        gt=0,
        le=1,
        description="Keep the likeliest values of each pixel that hold this share; 1 keeps all, "
        "and the model's own (see `/v1/models`) holds if left out.",
    ),
]
Guidance = Annotated[
    float | None,
    Field(
        ge=0,
        le=MAX_GUIDANCE,
        description="How strongly to draw towards the label: 1 as the model is, more for plainer "
        "examples of the class. The model's own holds if left out. Takes two slots an image.",
    ),
]
ParticleCount = Annotated[
    int,
    Field(
        ge=1,
        le=MAX_PARTICLES,
        description="Slots that draw one image side by side, so that known pixels after a hole "
        "guide what is drawn in it; 1 looks at what is above and to the left only.",
    ),
]
OutputField = Annotated[
    Output,
    Field(description="How JSON holds an image: base64 PNG, or a flat list of pixel values."),
]
# As OpenAPI 3.0 had it, which is what most generators of clients know.
Upload = Annotated[UploadFile, WithJsonSchema({"type": "string", "format": "binary"})]
CLASS_HELP = "A class by name or number (see `/v1/models`); left out, none is meant."
LABEL_HELP = (
    "A class by name or number (see `/v1/models`), or `random` for one chosen by each image's "
    "seed; left out, anything may come."
)


class SampleRequest(RequestBody):
    """Draw images from nothing."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={"examples": [{"n": 4, "label": "7", "seed": 1}]},
    )

    model: Model = None
    n: Count = 1
    label: Annotated[int | str | None, Field(description=LABEL_HELP)] = None
    seed: Seed = None
    temperature: Temperature = 1.0
    top_p: TopP = None
    guidance: Guidance = None
    stream: Annotated[bool, Field(description="Reply with server-sent events.")] = False
    granularity: Annotated[
        Granularity, Field(description="Of a stream: an update a pixel, a row, or what is new.")
    ] = "auto"
    output: OutputField = "png"


class CompletionForm(RequestBody):
    """Complete a picture: keep its known part, draw the rest ``n`` times."""

    model_config = ConfigDict(
        json_schema_extra=document_form(image="(a PNG's bytes)", known_rows=14, n=4),
    )

    image: Annotated[Upload, Field(description="PNG, JPEG, WebP, GIF, BMP or PPM.")]
    mask: Annotated[
        Upload | None,
        Field(
            description="A picture of the same shape, or of the model's size: draw where it "
            "is transparent (alpha 0)."
        ),
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
    top_p: TopP = None
    guidance: Guidance = None
    particles: ParticleCount = 1
    stream: bool = False
    granularity: Granularity = "auto"
    output: OutputField = "png"


class ScoreForm(RequestBody):
    """Measure pictures."""

    model_config = ConfigDict(
        json_schema_extra=document_form(image=["(a PNG's bytes)"], label="7"),
    )

    image: Annotated[
        list[Upload],
        Field(min_length=1, description="One picture, or several under the same name."),
    ]
    fit: Annotated[Fit, Field(description="For a picture of another size.")] = "exact"
    model: Model = None
    label: Annotated[str | None, Field(description=CLASS_HELP)] = None
    per_pixel: Annotated[bool, Field(description="Give the bits of each pixel too.")] = False


class DistributionRequest(RequestBody):
    """Ask what may come next."""

    model_config = ConfigDict(strict=True, json_schema_extra={"examples": [{"values": [0, 0, 0]}]})

    values: Annotated[
        list[Annotated[int, Field(ge=0, le=255)]],
        FailFast(),  # or a megabyte of wrong values would take seconds
        Field(description="The values so far, in raster order with the channels innermost."),
    ]
    model: Model = None
    label: Annotated[int | str | None, Field(description=CLASS_HELP)] = None
