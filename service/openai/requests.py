"""What OpenAI's images API may ask for here."""

from __future__ import annotations

import copy
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from scanline.service.api.requests import Guidance, Model, Seed, Temperature, TopP
from scanline.service.http.bodies import RequestBody, document_form

FileFormat = Literal["png", "jpeg", "webp"]

_NO_EFFECT = "Accepted for compatibility; has no effect here, which `warnings` in the reply says."


class ImageOptions(RequestBody):
    """What generations and edits share; every field but the prompt may be null or left out."""

    prompt: Annotated[
        str,
        Field(
            max_length=1000,
            description="Names a class (`7`, `draw a seven`, `a frog`), of any model if `model` is "
            "left out; empty for anything, `random` for classes by the seeds.",
        ),
    ]
    model: Model = None
    n: Annotated[int | None, Field(ge=1, description="Images to draw.")] = None
    size: Annotated[
        str | None,
        Field(
            description="`auto`, the model's own size, or a whole multiple of it. In OpenAI's own, "
            "such as `256x256`, the largest multiple that fits is in the middle."
        ),
    ] = None
    output_format: FileFormat | None = None
    output_compression: Annotated[
        int | None, Field(ge=0, le=100, description="Quality of a JPEG or WebP.")
    ] = None
    response_format: Annotated[
        Literal["b64_json", "url"] | None, Field(description="Only `b64_json` is possible.")
    ] = None
    background: Annotated[
        Literal["auto", "opaque", "transparent"] | None,
        Field(description="`transparent` is not possible."),
    ] = None
    stream: Annotated[bool | None, Field(description="Reply with server-sent events.")] = None
    partial_images: Annotated[
        int | None, Field(ge=0, le=3, description="Of a stream: looks at each unfinished image.")
    ] = None
    quality: Annotated[str | None, Field(description=_NO_EFFECT)] = None
    user: Annotated[str | None, Field(description=_NO_EFFECT)] = None
    safety_identifier: Annotated[str | None, Field(description=_NO_EFFECT)] = None
    seed: Seed = None
    temperature: Temperature | None = None
    top_p: TopP = None
    guidance: Guidance = None


class GenerationsRequest(ImageOptions):
    """Draw images, in OpenAI's words; `seed`, `temperature`, `top_p` and `guidance` are extras."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={"examples": [{"prompt": "7", "n": 2, "size": "280x280", "seed": 1}]},
    )

    style: Annotated[str | None, Field(description=_NO_EFFECT)] = None
    moderation: Annotated[str | None, Field(description=_NO_EFFECT)] = None


class EditsRequest(ImageOptions):
    """Complete a picture, in OpenAI's words; the picture and its mask come beside these fields."""

    input_fidelity: Annotated[str | None, Field(description=_NO_EFFECT)] = None


def edits_body() -> dict[str, Any]:
    """Describe the body of an edit, which is read by hand: a form, or JSON with data URLs."""
    options = EditsRequest.model_json_schema()
    binary = {"type": "string", "format": "binary"}
    form = options | {
        "title": "EditsForm",
        "required": ["prompt", "image"],
        "properties": copy.deepcopy(options["properties"])
        | {
            "image": binary | {"description": "The picture; `image[]` does as well."},
            "mask": binary | {"description": "To be painted where it is transparent (alpha 0)."},
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
