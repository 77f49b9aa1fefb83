"""What OpenAI's images API gets back: JSON, or events of a stream."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from fastapi.concurrency import run_in_threadpool
from fastapi.sse import format_sse_event
from numpy.typing import NDArray
from PIL import Image as Picture

from scanline.model.config import ModelConfig
from scanline.service.generation import FinishReason, Generation, Image, Request
from scanline.service.http.errors import error_body
from scanline.service.http.events import bits_per_dim, news

Kind = Literal["image_generation", "image_edit"]


@dataclass(frozen=True)
class Form:
    """The form that a reply's images take."""

    kind: Kind
    scale: int
    format: Literal["png", "jpeg", "webp"]
    quality: int | None
    warnings: list[str]

    def encode(self, pixels: NDArray[np.uint8], config: ModelConfig) -> str:
        """Encode an image, uint8 ``[T, C]``, enlarged by whole pixels, as base64."""
        shape = (config.height, config.width) + ((3,) if config.channels == 3 else ())
        picture = Picture.fromarray(pixels.reshape(shape))
        size = (config.width * self.scale, config.height * self.scale)
        buffer = io.BytesIO()
        options = {} if self.quality is None else {"quality": self.quality}
        picture.resize(size, Picture.Resampling.NEAREST).save(buffer, self.format, **options)
        return base64.b64encode(buffer.getvalue()).decode()


def images_json(generation: Generation, form: Form) -> dict[str, Any]:
    """Give a finished generation as OpenAI gives images."""
    config = generation.config
    return {
        "created": int(time.time()),
        "data": [
            {
                "b64_json": form.encode(image.read(0, config.pixels), config),
                "seed": image.seed,
                "bits_per_dim": bits_per_dim(generation, image),
            }
            for image in generation.images
        ],
        **_facts(form, config),
        "usage": _usage(generation.request, config, generation.request.n),
        "warnings": form.warnings,
    }


def _facts(form: Form, config: ModelConfig) -> dict[str, str]:
    size = f"{config.width * form.scale}x{config.height * form.scale}"
    return {"background": "opaque", "output_format": form.format, "size": size}


def _usage(request: Request, config: ModelConfig, images: int) -> dict[str, Any]:
    read, drawn = request.prefix * images, (config.pixels - request.prefix) * images
    return {
        "input_tokens": read,
        "input_tokens_details": {"image_tokens": read, "text_tokens": 0},
        "output_tokens": drawn,
        "total_tokens": read + drawn,
    }


async def stream_images(
    generation: Generation, gone: asyncio.Task[Any], form: Form, partials: int
) -> AsyncIterator[bytes]:
    """Yield ``partials`` looks at each image on its way, then the image; never an id or a comment.

    The stock client takes neither. A look is the image at an exact pixel, so it depends on the
    seed alone. Raises ``ClientGoneError`` when the client leaves.
    """
    told = [0] * len(generation.images)
    while True:
        # Before the images: nothing that changes while they are sent is missed.
        seen, finished = generation.changes, generation.finished
        for image in generation.images:
            for event in _due(generation, image, form, partials, told[image.index]):
                told[image.index] += 1
                yield await run_in_threadpool(_event, event)
        if finished:
            break
        await news(generation, gone, None, seen)
    if generation.error:
        body = error_body(500, generation.error, code="generation_failed")
        yield format_sse_event(event="error", data_str=json.dumps(body))


@dataclass(frozen=True)
class _Event:
    """An event to be encoded: an image up to ``position``, and what else is said of it."""

    name: Literal["partial_image", "completed"]
    generation: Generation
    image: Image
    form: Form
    position: int
    extra: dict[str, Any]


def _due(
    generation: Generation, image: Image, form: Form, partials: int, told: int
) -> Iterator[_Event]:
    """Give the events of an image that are due, past the first ``told``."""
    prefix, T = generation.request.prefix, generation.config.pixels
    for k in range(told, partials):
        position = prefix + (T - prefix) * (k + 1) // (partials + 1)
        if image.position < position:
            return
        extra: dict[str, Any] = {"partial_image_index": k}
        yield _Event("partial_image", generation, image, form, position, extra)
    if told <= partials and image.finish_reason is FinishReason.LENGTH:
        extra = {
            "bits_per_dim": bits_per_dim(generation, image),
            "usage": _usage(generation.request, generation.config, 1),
            "warnings": form.warnings,
        }
        yield _Event("completed", generation, image, form, T, extra)


def _event(event: _Event) -> bytes:
    config, request = event.generation.config, event.generation.request
    pixels = np.zeros((config.pixels, config.channels), np.uint8)
    if request.canvas is not None and request.known is not None:
        pixels[request.known] = request.canvas[request.known]
    pixels[: event.position] = event.image.read(0, event.position)
    data = {
        "type": f"{event.form.kind}.{event.name}",
        "b64_json": event.form.encode(pixels, config),
        "created_at": int(time.time()),
        **_facts(event.form, config),
        "quality": "auto",
        "index": event.image.index,
        "seed": event.image.seed,
        **event.extra,
    }
    return format_sse_event(event=data["type"], data_str=json.dumps(data))
