"""Server-sent events of the OpenAI-compatible API: partial images, then the finished ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pydantic import BaseModel

from scanline.service.api.replies import example
from scanline.service.api.waiting import wait_for_change
from scanline.service.engine.generation import Generation
from scanline.service.engine.image import FinishReason, Image
from scanline.service.errors import incomplete_error
from scanline.service.http.disconnect import WaitingClient
from scanline.service.http.errors import ErrorReply
from scanline.service.http.sse import (
    KEEP_ALIVE_COMMENT,
    KEEP_ALIVE_SECONDS,
    sse_event,
    stream_schema,
)
from scanline.service.http.thread_pool import FairThreadPool
from scanline.service.openai.rendering import Rendering
from scanline.service.openai.replies import USAGE, TokenUsage
from scanline.service.openai.requests import FileFormat

Kind = Literal["image_generation", "image_edit"]


_EVENT: dict[str, Any] = {
    "b64_json": "iVBORw0KGgo…", "created_at": 1700000000, "background": "opaque",
    "output_format": "png", "size": "28x28", "quality": "auto", "index": 0, "seed": 1,
}  # fmt: skip


class ImageEvent(BaseModel):
    """Fields that both events share."""

    type: str
    b64_json: str
    created_at: int
    background: Literal["opaque"] = "opaque"
    output_format: FileFormat
    size: str
    quality: Literal["auto"] = "auto"
    index: int
    seed: int


class PartialImage(ImageEvent):
    """Event ``….partial_image``: a preview of an unfinished image."""

    model_config = example(type="image_generation.partial_image", **_EVENT, partial_image_index=0)

    partial_image_index: int


class CompletedImage(ImageEvent):
    """Event ``….completed``: a finished image."""

    model_config = example(
        type="image_generation.completed", **_EVENT, bits_per_dim=0.61, usage=USAGE, warnings=[]
    )

    bits_per_dim: float | None
    usage: TokenUsage
    warnings: list[str]


EVENTS = {
    f"{kind}.{name}": shape
    for kind in get_args(Kind)
    for name, shape in (("partial_image", PartialImage), ("completed", CompletedImage))
} | {"error": ErrorReply}
EVENT_STREAM = stream_schema(EVENTS)


async def stream_images(
    generation: Generation,
    client: WaitingClient,
    kind: Kind,
    rendering: Rendering,
    partials: int,
    pool: FairThreadPool,
) -> AsyncIterator[bytes]:
    """Yield previews of each image, then the image, as server-sent events.

    A preview shows the image up to an exact pixel, so that its bytes depend on the seed only.
    Events have no ids, because OpenAI's client mistakes an empty line after an id for an event.
    Comments keep an idle connection open.

    Args:
        generation: The generation to read.
        client: The client that reads it.
        kind: Prefix of the event names.
        rendering: How the images are encoded.
        partials: The number of previews per image.
        pool: Threads that encode the images.

    Raises:
        ClientDisconnectedError: If the client disconnects.
    """
    loop = asyncio.get_running_loop()
    last_sent = loop.time()
    sent = [0] * len(generation.images)  # events per image
    builder = _EventBuilder(generation, kind, rendering)
    while True:
        # Read before the images, so that no change during the loop below is missed.
        version, finished = generation.version, generation.finished
        for image in generation.images:
            for position in _due_positions(generation, image, partials, sent[image.index]):
                preview = sent[image.index]
                sent[image.index] += 1
                event: ImageEvent
                if preview < partials:
                    event = await pool.run(client, builder.partial, image, position, preview)
                else:
                    event = await pool.run(client, builder.completed, image)
                yield sse_event(event.type, event)
                last_sent = loop.time()
        if finished:
            break
        # Wakes up at every change of the generation, though most are between two previews.
        deadline = last_sent + KEEP_ALIVE_SECONDS
        await wait_for_change(generation, client, deadline - loop.time(), version)
        if loop.time() >= deadline:
            yield KEEP_ALIVE_COMMENT
            last_sent = loop.time()
    if error := incomplete_error(generation):
        yield sse_event("error", error.reply)


def _due_positions(generation: Generation, image: Image, partials: int, sent: int) -> Iterator[int]:
    """Yield the position of each event of an image that is due, after the first ``sent`` events."""
    prefix, T = generation.spec.prefix, generation.config.pixels
    for preview in range(sent, partials):
        position = prefix + (T - prefix) * (preview + 1) // (partials + 1)
        if image.position < position:
            return
        yield position
    if sent <= partials and image.finish_reason is FinishReason.LENGTH:
        yield T


@dataclass(frozen=True)
class _EventBuilder:
    """Builder of the events of one stream."""

    generation: Generation
    kind: Kind
    rendering: Rendering

    def partial(self, image: Image, position: int, preview: int) -> PartialImage:
        shown = self.rendering.encode_preview(image.preview(position), self.generation.config)
        fields = self._fields("partial_image", image, shown)
        return PartialImage(**fields, partial_image_index=preview)

    def completed(self, image: Image) -> CompletedImage:
        generation = self.generation
        file = self.rendering.encode_image(generation, image)
        return CompletedImage(
            **self._fields("completed", image, file),
            bits_per_dim=generation.bits_per_dim(image),
            usage=TokenUsage.of(generation.spec, generation.config, 1),
            warnings=self.rendering.warnings,
        )

    def _fields(self, name: str, image: Image, file: str) -> dict[str, Any]:
        return {
            "type": f"{self.kind}.{name}",
            "b64_json": file,
            "created_at": int(time.time()),
            "output_format": self.rendering.format,
            "size": self.rendering.size,
            "index": image.index,
            "seed": image.seed,
        }
