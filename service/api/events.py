"""A generation as server-sent events, each a shape of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from pydantic import BaseModel, with_config
from typing_extensions import TypedDict

from scanline.service.api.cursors import END, Cursor, write_cursors
from scanline.service.api.replies import USAGE, PngImage, Usage, example, image_reply
from scanline.service.api.requests import Granularity, Output
from scanline.service.generation import FinishReason, Generation, Status
from scanline.service.http.errors import ErrorReply, error_reply
from scanline.service.http.sse import COMMENT, KEEP_ALIVE_SECONDS, describe_stream, sse_event
from scanline.service.http.waiting import news

EVENTS_PER_SECOND = 60
WAITING_SECONDS = 2.0  # between two events that say so
PIXELS_PER_EVENT = 4096  # of many images; one image is never split


_SEEDED: dict[str, Any] = {"index": 0, "seed": 1}
_UPDATE: dict[str, Any] = {"index": 0, "position": 56, "values": [0, 0, 12]}


class SeededImage(BaseModel):
    """An image to come, and the seed that draws it again."""

    model_config = example(**_SEEDED)

    index: int
    seed: int


class Started(BaseModel):
    """Event ``started``: what is to be drawn, and how many images wait before its first one."""

    model_config = example(
        id="gen_5f2c", model="mnist", width=28, height=28, channels=1, images=[_SEEDED],
        queue_position=0,
    )  # fmt: skip

    id: str
    model: str
    width: int
    height: int
    channels: int
    images: list[SeededImage]
    queue_position: int

    @classmethod
    def of(cls, generation: Generation) -> Started:
        """Announce a generation."""
        config = generation.config
        return cls(
            id=generation.id,
            model=generation.model,
            width=config.width,
            height=config.height,
            channels=config.channels,
            images=[SeededImage(index=i.index, seed=i.seed) for i in generation.images],
            queue_position=generation.queue_position,
        )


class Waiting(BaseModel):
    """Event ``waiting``, now and then: how many images come first, and for how long about."""

    model_config = example(queue_position=12, estimated_seconds=3.5)

    queue_position: int
    estimated_seconds: float


@with_config(example(**_UPDATE))
class Update(TypedDict):
    """What is new of an image: values from a position on, raster order, channels innermost.

    Sixty times a second and for every image: a dictionary, which takes a third of a model's time.
    """

    index: int
    position: int
    values: list[int]


@with_config(example(updates=[_UPDATE]))
class Pixels(TypedDict):
    """Event ``pixels``: what is new of some images."""

    updates: list[Update]


class Completed(BaseModel):
    """Event ``completed``: everything is drawn, or cancelled."""

    model_config = example(id="gen_5f2c", usage=USAGE)

    id: str
    usage: Usage


EVENTS = {
    "started": Started, "waiting": Waiting, "pixels": Pixels, "image": PngImage,
    "completed": Completed, "error": ErrorReply,
}  # fmt: skip
EVENT_STREAM = describe_stream(EVENTS)


async def stream_events(
    generation: Generation,
    gone: asyncio.Task[Any],
    *,
    granularity: Granularity = "auto",
    resumed: list[Cursor] | None = None,
    output: Output = "png",
    place: Callable[[], tuple[int, float]] | None = None,
) -> AsyncIterator[bytes]:
    """Yield a generation as server-sent events, from the start or from where a reader ``resumed``.

    ``started`` opens a stream that is not resumed; then ``waiting`` with its ``place`` in the queue
    now and then while it has to, ``pixels`` as they are drawn, ``image``
    as each is finished, its pixels as ``output`` says, and ``completed`` or ``error`` at the end.
    An event's id says how far its reader is then. Comments keep an idle connection open. Raises
    ``ClientGoneError`` when the client leaves.
    """
    loop = asyncio.get_running_loop()
    if resumed is None:
        yield sse_event("started", Started.of(generation))
    cursors = [Cursor() for _ in generation.images] if resumed is None else resumed
    while True:
        # Read before the pixels: what is finished now has all of its pixels below.
        seen, finished = generation.changes, generation.finished
        complete = [i for i in generation.images if i.status is Status.FINISHED]
        drawn = False
        for updates in _updates(generation, cursors, granularity):
            drawn = True
            yield sse_event("pixels", Pixels(updates=updates), write_cursors(cursors))
            await asyncio.sleep(0)  # a long replay leaves room for others
        for image in complete:
            if not cursors[image.index].told:
                cursors[image.index].told = True
                reply = image_reply(generation, image, output)
                yield sse_event("image", reply, write_cursors(cursors))
        if finished:
            break
        sent = loop.time()
        while True:
            waits = place is not None and generation.status is Status.WAITING
            seconds = WAITING_SECONDS if waits else KEEP_ALIVE_SECONDS
            if await news(generation, gone, seconds, seen):
                break
            if place is not None and generation.status is Status.WAITING:
                ahead, wait = place()
                still = Waiting(queue_position=ahead, estimated_seconds=round(wait, 1))
                yield sse_event("waiting", still)
            else:
                yield COMMENT
        if drawn:
            await asyncio.sleep(max(0.0, sent + 1 / EVENTS_PER_SECOND - loop.time()))
    if generation.error:
        failure = error_reply(500, generation.error, code="generation_failed")
        yield sse_event("error", failure, END)
    else:
        yield sse_event("completed", Completed(id=generation.id, usage=Usage.of(generation)), END)


def _updates(
    generation: Generation, cursors: list[Cursor], granularity: Granularity
) -> Iterator[list[Update]]:
    """Take what each image has beyond its cursor, an event's worth at a time; move cursors on."""
    width = generation.config.width
    updates: list[Update] = []
    pixels_held = 0
    for image in generation.images:
        cursor = cursors[image.index]
        changed = image.changed[cursor.changes :]
        cursor.changes += len(changed)
        start, stop = min([cursor.position, *changed]), image.position
        if granularity == "row" and image.finish_reason in (None, FinishReason.LENGTH):
            stop -= stop % width
            start -= start % width
        if stop <= start:
            continue
        pixels = image.read(start, stop)
        size = {"pixel": 1, "row": width, "auto": stop - start}[granularity]
        updates += [
            Update(
                index=image.index,
                position=start + first,
                values=pixels[first : first + size].ravel().tolist(),
            )
            for first in range(0, stop - start, size)
        ]
        cursor.position = stop
        pixels_held += stop - start
        if pixels_held >= PIXELS_PER_EVENT:
            yield updates
            updates, pixels_held = [], 0
    if updates:
        yield updates
