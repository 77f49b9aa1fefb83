"""A generation as OpenAI streams images: looks at each on its way, then the image."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pydantic import BaseModel

from scanline.service.api.replies import example
from scanline.service.engine.generation import FinishReason, Generation, Image
from scanline.service.http.errors import ErrorReply
from scanline.service.http.sse import (
    KEEP_ALIVE_COMMENT,
    KEEP_ALIVE_SECONDS,
    sse_event,
    stream_schema,
)
from scanline.service.http.thread_pool import FairThreadPool
from scanline.service.http.waiting import WaitingClient, incomplete_error, wait_for_change
from scanline.service.openai.rendering import Rendering
from scanline.service.openai.replies import USAGE, TokenUsage
from scanline.service.openai.requests import FileFormat

Kind = Literal["image_generation", "image_edit"]


_EVENT: dict[str, Any] = {
    "b64_json": "iVBORw0KGgo…", "created_at": 1700000000, "background": "opaque",
    "output_format": "png", "size": "28x28", "quality": "auto", "index": 0, "seed": 1,
}  # fmt: skip


class ImageEvent(BaseModel):
    """What every event says of its image."""

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
    """Event ``….partial_image``: an image on its way."""

    model_config = example(type="image_generation.partial_image", **_EVENT, partial_image_index=0)

    partial_image_index: int


class CompletedImage(ImageEvent):
    """Event ``….completed``: an image drawn to its end."""

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
    """Yield ``partials`` looks at each image on its way, then the image; never an id.

    Comments keep an idle connection open. The stock client takes an empty line after an id, or
    after a comment that follows one, for an event: so there are none. A look is the image at an
    exact pixel, so it depends on the seed alone. Images are encoded in the pool. Raises
    ``ClientDisconnectedError`` when the client leaves.
    """
    loop = asyncio.get_running_loop()
    spoke = loop.time()
    told = [0] * len(generation.images)
    teller = _Teller(generation, kind, rendering)
    while True:
        # Before the images: nothing that changes while they are sent is missed.
        seen, finished = generation.version, generation.finished
        for image in generation.images:
            for position in _due(generation, image, partials, told[image.index]):
                look = told[image.index]
                told[image.index] += 1
                event: ImageEvent
                if look < partials:
                    event = await pool.run(client, teller.partial, image, position, look)
                else:
                    event = await pool.run(client, teller.completed, image)
                yield sse_event(event.type, event)
                spoke = loop.time()
        if finished:
            break
        # What is drawn between two looks is news too, of which nobody hears.
        await wait_for_change(generation, client, spoke + KEEP_ALIVE_SECONDS - loop.time(), seen)
        if loop.time() >= spoke + KEEP_ALIVE_SECONDS:
            yield KEEP_ALIVE_COMMENT
            spoke = loop.time()
    if failed := incomplete_error(generation):
        yield sse_event("error", failed.reply)


def _due(generation: Generation, image: Image, partials: int, told: int) -> Iterator[int]:
    """Give the positions at which an image is now to be shown, past the first ``told``."""
    prefix, T = generation.spec.prefix, generation.config.pixels
    for look in range(told, partials):
        position = prefix + (T - prefix) * (look + 1) // (partials + 1)
        if image.position < position:
            return
        yield position
    if told <= partials and image.finish_reason is FinishReason.LENGTH:
        yield T


@dataclass(frozen=True)
class _Teller:
    """Makes the events of one stream."""

    generation: Generation
    kind: Kind
    rendering: Rendering

    def partial(self, image: Image, position: int, look: int) -> PartialImage:
        facts = self._facts("partial_image", image, position)
        return PartialImage(**facts, partial_image_index=look)

    def completed(self, image: Image) -> CompletedImage:
        generation = self.generation
        return CompletedImage(
            **self._facts("completed", image, generation.config.pixels),
            bits_per_dim=generation.bits_per_dim(image),
            usage=TokenUsage.of(generation.spec, generation.config, 1),
            warnings=self.rendering.warnings,
        )

    def _facts(self, name: str, image: Image, position: int) -> dict[str, Any]:
        config = self.generation.config
        return {
            "type": f"{self.kind}.{name}",
            "b64_json": self.rendering.encode(image.preview(position), config),
            "created_at": int(time.time()),
            "output_format": self.rendering.format,
            "size": self.rendering.size,
            "index": image.index,
            "seed": image.seed,
        }
