"""Rendering of a reply's images: size, file format, and warnings about ignored options."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from scanline.model.config import ModelConfig
from scanline.model.images import BACKGROUND
from scanline.service.engine.generation import Generation
from scanline.service.engine.image import Image as Drawn
from scanline.service.http.errors import ApiError
from scanline.service.images import MAX_SIDE
from scanline.service.openai.requests import FileFormat, ImageOptions
from scanline.service.recipes.png_encoding import embed

MAX_PIXELS = 20_000_000  # of all images of a reply, previews included
_NO_EFFECT = {
    "quality": "the model has only one quality",
    "style": "the model has only one style",
    "moderation": "the prompt only names a class of the model",
    "user": "requests are not distinguished by user",
    "safety_identifier": "requests are not distinguished by user",
    "input_fidelity": "the known pixels are always kept exactly",
    "markup": "the mask alone marks what is drawn",
    "complexity": "the computation per image is always the same",
    "frame_count": "images are never animated",
    "frame_duration_ms": "images are never animated",
    "svg": "images are never SVG",
}


class Frame(NamedTuple):
    """Size of a file, with the enlarged image in its middle, on a uniform background.

    Attributes:
        width, height: The size of the file in pixels.
        scale: The side of each of the image's pixels.
    """

    width: int
    height: int
    scale: int

    def box(self, config: ModelConfig) -> tuple[int, int, int, int]:
        """Return the position of the image in the file: left, top, right, bottom."""
        w, h = config.width * self.scale, config.height * self.scale
        left, top = (self.width - w) // 2, (self.height - h) // 2
        return left, top, left + w, top + h


def frame_for(width: int, height: int, config: ModelConfig) -> Frame | None:
    """Return the frame of a size, or None if it is too small or too large.

    A whole multiple of the model's size may have any number of pixels per side, another size at
    most ``MAX_SIDE``.
    """
    scale = min(width // config.width, height // config.height)
    exact = (width, height) == (config.width * scale, config.height * scale)
    if scale >= 1 and (exact or max(width, height) <= MAX_SIDE):
        return Frame(width, height, scale)
    return None


@dataclass(frozen=True)
class Rendering:
    """File size, format and quality of encoded images.

    Attributes:
        frame: The size of the files.
        format: The file format.
        quality: The quality of a JPEG or WebP, 0 to 100.
        warnings: Requested options that have no effect, or an unexpected one.
    """

    frame: Frame
    format: FileFormat
    quality: int
    warnings: list[str]

    @property
    def pixels(self) -> int:
        """Number of pixels per file."""
        return self.frame.width * self.frame.height

    @property
    def size(self) -> str:
        """Size of the files as in OpenAI's API, such as "28x28"."""
        return f"{self.frame.width}x{self.frame.height}"

    def encode_image(self, generation: Generation, image: Drawn) -> str:
        """Encode a finished image as a base64 file; a PNG carries its recipe."""
        config = generation.config
        file = self._encode(image.read(0, config.pixels), config)
        if self.format == "png":
            file = embed(file, generation, image, self.frame.scale)
        return base64.b64encode(file).decode()

    def encode_preview(self, pixels: NDArray[np.uint8], config: ModelConfig) -> str:
        """Encode an unfinished image, uint8 ``[T, C]``, as a base64 file without a recipe."""
        return base64.b64encode(self._encode(pixels, config)).decode()

    def _encode(self, pixels: NDArray[np.uint8], config: ModelConfig) -> bytes:
        shape = (config.height, config.width) + ((3,) if config.channels == 3 else ())
        picture = Image.fromarray(pixels.reshape(shape))
        left, top, right, bottom = self.frame.box(config)
        large = picture.resize((right - left, bottom - top), Image.Resampling.NEAREST)
        if large.size != self.frame[:2]:
            grey = (BACKGROUND,) * config.channels
            around = Image.new(large.mode, self.frame[:2], grey if len(grey) > 1 else BACKGROUND)
            around.paste(large, (left, top))
            large = around
        buffer = io.BytesIO()
        options = {} if self.format == "png" else {"quality": self.quality}
        if self.format == "webp":
            options["method"] = 2  # a tenth larger than the default, in a third of the time
        large.save(buffer, self.format, **options)
        return buffer.getvalue()


def choose_rendering(body: ImageOptions, config: ModelConfig) -> Rendering:
    """Choose the rendering of a request; raises ``ApiError`` if an option is not supported."""
    if body.response_format == "url":
        raise ApiError(
            400, "response_format: images are not stored under a URL; ask for b64_json",
            param="response_format", code="unsupported",
        )  # fmt: skip
    if body.background == "transparent":
        raise ApiError(
            400, "background: images are never transparent; leave it out",
            param="background", code="unsupported",
        )  # fmt: skip
    warnings = [
        f"{name}: no effect, {why}"
        for name, why in _NO_EFFECT.items()
        if getattr(body, name, None) not in (None, "auto")
    ]
    kind_of_file = body.output_format or "png"
    if body.output_compression is not None and kind_of_file == "png":
        warnings.append("output_compression: no effect, because PNG is lossless; see output_format")
    if body.partial_images and not body.stream:
        warnings.append("partial_images: no effect without stream")
    quality = 100 if body.output_compression is None else body.output_compression
    frame = _frame(body.size, config)
    left, top, right, bottom = frame.box(config)
    if (right - left, bottom - top) != frame[:2]:
        warnings.append(
            f"size: the model's size is {config.width}x{config.height}; the image is enlarged "
            f"{frame.scale} times to {right - left}x{bottom - top}, in the middle of {body.size}"
        )
    previews = (body.partial_images or 0) if body.stream else 0
    images = (body.n or 1) * (1 + previews)
    rendering = Rendering(frame, kind_of_file, quality, warnings)
    own = frame[:2] == (config.width, config.height)
    if not own and images * rendering.pixels > MAX_PIXELS:
        raise ApiError(
            400,
            f"size: {images} images of {rendering.pixels:,} pixels, partial ones included, exceed "
            f"the limit of {MAX_PIXELS:,} pixels per reply; ask for at most "
            f"{MAX_PIXELS // rendering.pixels} of this size, or for a smaller size",
            param="size",
            code="too_many",
        )
    return rendering


def _frame(size: str | None, config: ModelConfig) -> Frame:
    w, h = config.width, config.height
    if size in (None, "auto"):
        return Frame(w, h, 1)
    if wanted := re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,3})", size or "", re.ASCII):
        frame = frame_for(int(wanted[1]), int(wanted[2]), config)
        if frame is not None and max(frame[:2]) <= MAX_SIDE:
            return frame
    raise ApiError(
        400,
        f"size: must be auto, or from the model's size {w}x{h} up to {MAX_SIDE}x{MAX_SIDE}, such "
        f"as {10 * w}x{10 * h}",
        param="size",
        code="unsupported",
    )
