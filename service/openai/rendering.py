"""How a reply's images look: their size, their file format, and what had no effect on either."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from scanline.model.config import ModelConfig
from scanline.service.http.errors import ApiError
from scanline.service.openai.requests import FileFormat, ImageOptions

MAX_SIDE = 2048  # of an enlarged image
MAX_PIXELS = 20_000_000  # of all images of a reply, looks at them included
_NO_EFFECT = {
    "quality": "an image has the one quality that its model gives it",
    "style": "an image has the one style that its model learnt",
    "moderation": "there is nothing to moderate in a class of the model",
    "user": "requests are not told apart by user",
    "safety_identifier": "requests are not told apart by user",
    "input_fidelity": "what is not to be painted is kept exactly",
}


@dataclass(frozen=True)
class Rendering:
    """How images are made files: each pixel ``scale`` wide, of a format and a quality.

    ``warnings`` name the options asked for that have no effect.
    """

    scale: int
    format: FileFormat
    quality: int | None
    warnings: list[str]

    def pixels(self, config: ModelConfig) -> int:
        """Count an image's pixels."""
        return config.pixels * self.scale**2

    def size(self, config: ModelConfig) -> str:
        """Give an image's size in OpenAI's way, width x height."""
        return f"{config.width * self.scale}x{config.height * self.scale}"

    def encode(self, pixels: NDArray[np.uint8], config: ModelConfig) -> str:
        """Encode an image, uint8 ``[T, C]``, enlarged by whole pixels, as base64."""
        shape = (config.height, config.width) + ((3,) if config.channels == 3 else ())
        picture = Image.fromarray(pixels.reshape(shape))
        size = (config.width * self.scale, config.height * self.scale)
        buffer = io.BytesIO()
        options = {} if self.quality is None else {"quality": self.quality}
        if self.format == "webp":
            options["method"] = 2  # a tenth larger than by default, in a third of the time
        picture.resize(size, Image.Resampling.NEAREST).save(buffer, self.format, **options)
        return base64.b64encode(buffer.getvalue()).decode()


def choose_rendering(body: ImageOptions, config: ModelConfig) -> Rendering:
    """Settle how the images look; refuses what cannot be, and notes what has no effect."""
    if body.response_format == "url":
        raise ApiError(
            400, "response_format: images are not kept under a URL here; ask for b64_json",
            param="response_format", code="unsupported",
        )  # fmt: skip
    if body.background == "transparent":
        raise ApiError(
            400, "background: the model draws every pixel, so nothing is transparent; leave it out",
            param="background", code="unsupported",
        )  # fmt: skip
    warnings = [
        f"{name}: no effect, {why}"
        for name, why in _NO_EFFECT.items()
        if getattr(body, name, None) not in (None, "auto")
    ]
    kind_of_file = body.output_format or "png"
    if body.output_compression is not None and kind_of_file == "png":
        warnings.append("output_compression: no effect, a PNG loses nothing; see output_format")
    if body.partial_images and not body.stream:
        warnings.append("partial_images: no effect without stream")
    quality = None if kind_of_file == "png" else body.output_compression
    scale = _scale(body.size, config)
    looks = (body.partial_images or 0) if body.stream else 0
    images = (body.n or 1) * (1 + looks)
    pixels = config.pixels * scale**2
    if scale > 1 and images * pixels > MAX_PIXELS:
        raise ApiError(
            400,
            f"size: {images} images of {pixels:,} pixels, partial ones included, are more than the "
            f"{MAX_PIXELS:,} pixels a reply may have; ask for at most {MAX_PIXELS // pixels} of "
            "this size, or for a smaller size",
            param="size",
            code="too_many",
        )
    return Rendering(scale, kind_of_file, quality, warnings)


def _scale(size: str | None, config: ModelConfig) -> int:
    if size in (None, "auto"):
        return 1
    for scale in range(1, MAX_SIDE // max(config.width, config.height) + 1):
        if size == f"{config.width * scale}x{config.height * scale}":
            return scale
    w, h = config.width, config.height
    raise ApiError(
        400,
        f"size: this model draws {w}x{h}; ask for that, for auto, or for a whole multiple such as "
        f"{10 * w}x{10 * h} (at most {MAX_SIDE} a side), which enlarges its pixels",
        param="size",
        code="unsupported",
    )
