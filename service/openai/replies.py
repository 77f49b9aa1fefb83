"""JSON replies of the OpenAI-compatible API."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from scanline.model.config import ModelConfig
from scanline.service.api.replies import example
from scanline.service.engine.generation import Generation, GenerationSpec
from scanline.service.openai.rendering import Rendering
from scanline.service.openai.requests import FileFormat

_IMAGE: dict[str, Any] = {"b64_json": "iVBORw0KGgo…", "seed": 1, "bits_per_dim": 0.61}
_NO_TOKENS: dict[str, Any] = {"image_tokens": 0, "text_tokens": 0}
USAGE: dict[str, Any] = {
    "input_tokens": 0,
    "input_tokens_details": _NO_TOKENS,
    "output_tokens": 784,
    "total_tokens": 784,
}
_REPLY: dict[str, Any] = {
    "created": 1700000000, "data": [_IMAGE], "background": "opaque", "quality": "auto",
    "output_format": "png", "size": "28x28", "usage": USAGE, "warnings": [],
}  # fmt: skip


class DrawnImage(BaseModel):
    """One image as base64, and the seed that reproduces it."""

    model_config = example(**_IMAGE)

    b64_json: str
    seed: int
    bits_per_dim: float | None


class TokenDetails(BaseModel):
    """Number of tokens by kind. The prompt counts as none, because it only names a class."""

    model_config = example(**_NO_TOKENS)

    image_tokens: int
    text_tokens: int = 0


class TokenUsage(BaseModel):
    """Number of pixels read and drawn, reported as tokens."""

    model_config = example(**USAGE)

    input_tokens: int
    input_tokens_details: TokenDetails
    output_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, spec: GenerationSpec, config: ModelConfig, images: int) -> TokenUsage:
        """Count the pixels of some images: the leading known ones are read, the others drawn."""
        read, drawn = spec.prefix * images, (config.pixels - spec.prefix) * images
        return cls(
            input_tokens=read,
            input_tokens_details=TokenDetails(image_tokens=read),
            output_tokens=drawn,
            total_tokens=read + drawn,
        )


class ImagesReply(BaseModel):
    """Images in OpenAI's shape, with warnings about options that had no effect."""

    model_config = example(**_REPLY)

    created: int
    data: list[DrawnImage]
    background: Literal["opaque"] = "opaque"
    quality: Literal["auto"] = "auto"
    output_format: FileFormat
    size: str
    usage: TokenUsage
    warnings: Annotated[
        list[str], Field(description="Options that had no effect, or an unusual one.")
    ]

    @classmethod
    def of(cls, generation: Generation, rendering: Rendering, files: list[str]) -> ImagesReply:
        """Describe a finished generation, with its images encoded as ``files``."""
        config = generation.config
        return cls(
            created=int(time.time()),
            data=[
                DrawnImage(
                    b64_json=file,
                    seed=image.seed,
                    bits_per_dim=generation.bits_per_dim(image),
                )
                for image, file in zip(generation.images, files, strict=True)
            ],
            output_format=rendering.format,
            size=rendering.size,
            usage=TokenUsage.of(generation.spec, config, generation.spec.n),
            warnings=rendering.warnings,
        )
