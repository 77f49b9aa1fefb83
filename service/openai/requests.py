"""Request bodies of the OpenAI-compatible API."""

from __future__ import annotations

import copy
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from scanline.service.api.requests import Model, SamplingFields, Seed, Temperature
from scanline.service.http.bodies import ACCEPT_WHOLE_FLOAT, document_form

FileFormat = Literal["png", "jpeg", "webp"]

NoEffect = Annotated[
    Any,
    Field(
        description="Accepted for compatibility. Has no effect, as `warnings` in the reply says."
    ),
]


class ImageOptions(SamplingFields):
    """Fields of generations and edits. All except the prompt may be left out.

    OpenAI adds fields over the years, and its clients send null for those that are not set. A field
    that has no effect here is of any type, because its value does not matter.
    """

    ignore_unknown_nulls: ClassVar[bool] = True

    prompt: Annotated[
        str,
        Field(
            max_length=1000,
            description="Name of a class (`7`, `draw a seven`, `a frog`), of any model if `model` "
            "is left out. Empty for no particular class, `random` for a class chosen by each seed.",
        ),
    ]
    model: Model = None
    n: Annotated[int | None, Field(ge=1, description="Number of images."), ACCEPT_WHOLE_FLOAT] = (
        None
    )
    size: Annotated[
        str | None,
        Field(
            description="`auto` (the model's size), or any larger size up to `2048x2048`, with the "
            "largest whole multiple of the model's size that fits in the middle."
        ),
    ] = None
    output_format: FileFormat | None = None
    output_compression: Annotated[
        int | None,
        Field(ge=0, le=100, description="Quality of a JPEG or WebP; 100 if left out."),
        ACCEPT_WHOLE_FLOAT,
    ] = None
    response_format: Annotated[
        Literal["b64_json", "url"] | None, Field(description="Only `b64_json` is supported.")
    ] = None
    background: Annotated[
        Literal["auto", "opaque", "transparent"] | None,
        Field(description="`transparent` is not supported."),
    ] = None
    stream: Annotated[bool | None, Field(description="Reply with server-sent events.")] = None
    partial_images: Annotated[
        int | None,
        Field(ge=0, le=3, description="Of a stream: number of previews per image."),
        ACCEPT_WHOLE_FLOAT,
    ] = None
    complexity: NoEffect = None
    frame_count: NoEffect = None
    frame_duration_ms: NoEffect = None
    input_fidelity: NoEffect = None
    markup: NoEffect = None
    moderation: NoEffect = None
    quality: NoEffect = None
    safety_identifier: NoEffect = None
    style: NoEffect = None
    svg: NoEffect = None
    user: NoEffect = None
    seed: Seed = None
    # Null in the schema, because OpenAI's clients send it. Every route accepts it.
    temperature: Temperature | None = None  # type: ignore[assignment]


class GenerationsRequest(ImageOptions):
    """OpenAI's request to draw images, with `seed` and the sampling options in addition."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={"examples": [{"prompt": "7", "n": 2, "size": "280x280", "seed": 1}]},
    )


class EditsRequest(ImageOptions):
    """OpenAI's request to complete a picture, without the picture and the mask."""


def edits_body() -> dict[str, Any]:
    """Return the OpenAPI description of an edit's body: a form, or JSON with data URLs."""
    options = EditsRequest.model_json_schema()
    binary = {"type": "string", "format": "binary"}
    form = options | {
        "title": "EditsForm",
        "required": ["prompt", "image"],
        "properties": copy.deepcopy(options["properties"])
        | {
            "image": binary | {"description": "The picture. The name `image[]` works too."},
            "mask": binary | {"description": "Its transparent pixels (alpha 0) are drawn."},
        },
    }
    document_form(prompt="7", image="(a PNG's bytes)", n=2)(form)
    source = {
        "type": "object",
        "required": ["image_url"],
        "additionalProperties": False,
        "properties": {"image_url": {"type": "string", "description": "A `data:` URL, base64."}},
    }
    json = options | {
        "title": "EditsJson",
        "required": ["prompt", "images"],
        "properties": options["properties"]
        | {
            "images": {"type": "array", "items": source, "minItems": 1, "maxItems": 1},
            "mask": source,
        },
        "examples": [
            {"prompt": "7", "images": [{"image_url": "data:image/png;base64,iVBORw0KGgo…"}], "n": 2}
        ],
    }
    content = {"multipart/form-data": {"schema": form}, "application/json": {"schema": json}}
    return {"requestBody": {"required": True, "content": content}}
