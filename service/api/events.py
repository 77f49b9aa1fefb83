"""A generation as server-sent events, each a shape of its own."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, with_config
from typing_extensions import TypedDict

from scanline.service.api.cursors import END_ID, Cursor, format_cursors
from scanline.service.api.replies import (
    USAGE,
    ImageLabel,
    ImageReply,
    Usage,
    example,
    image_reply,
    label_name,
)
from scanline.service.api.requests import Granularity, Output
from scanline.service.engine.generation import FinishReason, Generation, Image, Status
from scanline.service.http.errors import ErrorReply
from scanline.service.http.sse import (
    KEEP_ALIVE_COMMENT,
    KEEP_ALIVE_SECONDS,
    StreamPacer,
    sse_event,
    sse_event_from_json,
    stream_schema,
)
from scanline.service.http.thread_pool import FairThreadPool
from scanline.service.http.waiting import (
    WaitingClient,
    generation_error,
    wait_for_change,
    wait_until_finished,
)

WAITING_SECONDS = 2.0  # between two events that say so
PIXELS_PER_EVENT = 4096  # some rows of the widest image
MAX_INLINE_VALUES = 16_384  # of an image of which an event is written in about a millisecond
CHUNK_BYTES = 32_768  # events that come together are sent together, up to so many bytes


_SEEDED: dict[str, Any] = {"index": 0, "seed": 1, "label": "7"}
_UPDATE: dict[str, Any] = {"index": 0, "position": 56, "values": [0, 0, 12]}


class SeededImage(BaseModel):
    """An image to come: the seed that draws it again, and of what class."""

    model_config = example(**_SEEDED)

    index: int
    seed: int
    label: ImageLabel


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
    def of(cls, generation: Generation, ahead: int) -> Started:
        """Announce a generation, so many images ``ahead`` of it."""
        config = generation.config
        return cls(
            id=generation.id,
            model=generation.model,
            width=config.width,
            height=config.height,
            channels=config.channels,
            images=[
                SeededImage(index=i.index, seed=i.seed, label=label_name(generation, i))
                for i in generation.images
            ],
            queue_position=ahead,
        )


class Waiting(BaseModel):
    """Event ``waiting``, now and then: how many images come first, and for how long about."""

    model_config = example(queue_position=12, estimated_seconds=3.5)

    queue_position: int
    estimated_seconds: float


@with_config(example(**_UPDATE))
class Update(TypedDict):
    """What is new of an image: values from a position on, raster order, channels innermost."""

    index: int
    position: int
    values: list[int]


@with_config(example(updates=[_UPDATE]))
class Pixels(TypedDict):
    """Event ``pixels``: what is new of some images.

    Up to sixty times a second and for every image, and so ``_Reader`` writes it by itself.
    """

    updates: list[Update]


class Completed(BaseModel):
    """Event ``completed``: everything is drawn, or cancelled."""

    model_config = example(id="gen_5f2c", usage=USAGE, warnings=[])

    id: str
    usage: Usage
    warnings: list[str]


EVENTS: dict[str, Any] = {
    "started": Started, "waiting": Waiting, "pixels": Pixels, "image": ImageReply,
    "completed": Completed, "error": ErrorReply,
}  # fmt: skip
EVENT_STREAM = stream_schema(EVENTS)
# Each value as text, before a comma, and those 256 further before the end of an update.
_TEXTS = np.array([f"{i % 256}{',' if i < 256 else chr(10)}" for i in range(512)], "S4").view("u4")


async def stream_events(
    generation: Generation,
    client: WaitingClient,
    streams: StreamPacer,
    pool: FairThreadPool,
    *,
    granularity: Granularity = "auto",
    resumed: list[Cursor] | None = None,
    output: Output = "png",
    place: Callable[[], tuple[int, float]] | None = None,
) -> AsyncIterator[bytes]:
    """Yield a generation as server-sent events, from the start or from where a reader ``resumed``.

    ``started`` opens a stream that is not resumed; then ``waiting`` with its ``place`` in the queue
    now and then while it has to, ``pixels`` as they are drawn, as often as the other ``streams``
    leave it, ``image`` as each is finished, its pixels as ``output`` says, and ``completed`` or
    ``error`` at the end. An event's id says how far its reader is then. Comments keep an idle
    connection open. Events of large images are written in the ``pool``. Raises
    ``ClientDisconnectedError``
    when the client leaves.
    """
    loop = asyncio.get_running_loop()
    if resumed is None:
        waits = generation.status is Status.WAITING
        ahead = place()[0] if place is not None and waits else 0
        yield sse_event("started", Started.of(generation, ahead))
    spoke = loop.time()
    reader = _Reader(generation, granularity, output, resumed)

    async def write(parts: Iterator[bytes]) -> bytes | None:
        if generation.config.values > MAX_INLINE_VALUES and reader.begun:
            return await pool.run(client, next, parts, None)
        return next(parts, None)

    with streams.pace() as pause:
        while True:
            # Read before the pixels: what is finished now has all of its pixels below.
            seen, finished = generation.version, generation.finished
            drawn, parts = False, _in_parts(reader.news())
            while (part := await write(parts)) is not None:
                drawn = True
                yield part
                if len(part) >= CHUNK_BYTES:
                    await asyncio.sleep(0)  # a long replay leaves room for others
            if finished:
                break
            if drawn:
                spoke = loop.time()
                await wait_until_finished(generation, client, pause(spoke))
                if generation.version != seen:  # by then there is news, without another waking
                    continue
            waits = place is not None and generation.status is Status.WAITING
            until = spoke + (WAITING_SECONDS if waits else KEEP_ALIVE_SECONDS)
            await wait_for_change(generation, client, until - loop.time(), seen)
            if loop.time() < until:  # there is news, though not of a row that is complete
                continue
            if place is not None and generation.status is Status.WAITING:
                ahead, wait = place()
                still = Waiting(queue_position=ahead, estimated_seconds=round(wait, 1))
                yield sse_event("waiting", still)
            else:
                yield KEEP_ALIVE_COMMENT
            spoke = loop.time()
    if failed := generation_error(generation):
        yield sse_event("error", failed.reply, END_ID)
    else:
        usage, warnings = Usage.of(generation), generation.warnings
        done = Completed(id=generation.id, usage=usage, warnings=warnings)
        yield sse_event("completed", done, END_ID)


def _in_parts(events: Iterator[bytes]) -> Iterator[bytes]:
    """Put events together that come together, up to so many bytes."""
    part = bytearray()
    for event in events:
        part += event
        if len(part) >= CHUNK_BYTES:
            yield bytes(part)
            part.clear()
    if part:
        yield bytes(part)


class _Reader:
    """How far a reader is, and what is new to it."""

    def __init__(
        self,
        generation: Generation,
        granularity: Granularity,
        output: Output,
        resumed: list[Cursor] | None,
    ) -> None:
        self._generation, self._granularity, self._output = generation, granularity, output
        self._cursors = [Cursor()] * len(generation.images) if resumed is None else resumed
        self._untold = [image for image in generation.images if not self._cursors[image.index].told]

    @property
    def begun(self) -> bool:
        """Whether there may be news: images begin in their order."""
        return bool(self._untold) and self._untold[0].status is not Status.WAITING

    def news(self) -> Iterator[bytes]:
        """Write an event of each piece of news, and move on."""
        # An image still waiting has none, nor have those behind it: they are taken in their order.
        begun = list(itertools.takewhile(lambda i: i.status is not Status.WAITING, self._untold))
        complete = [image for image in begun if image.status is Status.FINISHED]
        for line in self._updates(begun):
            yield sse_event_from_json("pixels", line, format_cursors(self._cursors))
        for image in complete:
            self._cursors[image.index] = self._cursors[image.index]._replace(told=True)
            reply = image_reply(self._generation, image, self._output)
            yield sse_event("image", reply, format_cursors(self._cursors))
        if complete:
            self._untold = [i for i in self._untold if not self._cursors[i.index].told]

    def _updates(self, images: list[Image]) -> Iterator[bytes]:
        """Take what each image has beyond its cursor: ``Pixels`` as JSON, an event's worth each."""
        width = self._generation.config.width
        event = _PixelsWriter()
        for image in images:
            cursor = self._cursors[image.index]
            changed = image.revisions[cursor.changes :]
            begin = start = min([cursor.position, *changed])
            stop = image.position
            if self._granularity == "row" and image.finish_reason in (None, FinishReason.LENGTH):
                stop -= stop % width
                start -= start % width
            # What changed is told, even where nothing of it is shown as yet.
            cursor = Cursor(begin, cursor.changes + len(changed))
            self._cursors[image.index] = cursor
            most = PIXELS_PER_EVENT // width * width
            size = {"pixel": 1, "row": width, "auto": most}[self._granularity]
            for first in range(start, stop, most):
                end = min(first + most, stop)
                event.add(image, first, end, size)
                self._cursors[image.index] = cursor._replace(position=end)
                if event.pixels >= most:
                    yield event.write()
                    event = _PixelsWriter()
        if event.pixels:
            yield event.write()


class _PixelsWriter:
    """An event ``pixels``, written all at once: value by value would take far longer."""

    def __init__(self) -> None:
        self.pixels = 0
        self._read: list[NDArray[np.uint8]] = []
        self._updates: list[tuple[int, int]] = []  # image and position
        self._ends: list[int] = []  # how many pixels there are until then

    def add(self, image: Image, start: int, stop: int, size: int) -> None:
        """Add pixels ``start … stop`` of an image, an ``Update`` of each ``size`` of them."""
        self._read.append(image.read(start, stop))
        self._updates += [(image.index, position) for position in range(start, stop, size)]
        before = self.pixels - start
        self._ends += [before + end for end in range(start + size, stop, size)]
        self.pixels += stop - start
        self._ends.append(self.pixels)

    def write(self) -> bytes:
        """Give it as JSON."""
        values = np.concatenate(self._read).astype(np.uint16)
        values[np.array(self._ends) - 1, -1] += 256
        each = _TEXTS[values].tobytes().translate(None, b"\0").decode().split("\n")
        updates = [
            f'{{"index":{index},"position":{position},"values":[{text}]}}'
            for (index, position), text in zip(self._updates, each, strict=False)
        ]
        return f'{{"updates":[{",".join(updates)}]}}'.encode()
