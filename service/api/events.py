"""Stream of a generation's server-sent events."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from scanline.service.api.cursors import END_ID, Cursor, format_cursors
from scanline.service.api.event_schemas import Completed, Started, Waiting
from scanline.service.api.replies import Usage, image_reply
from scanline.service.api.requests import Granularity, Output
from scanline.service.api.waiting import wait_for_change, wait_until_finished
from scanline.service.engine.generation import Generation, GenerationStatus
from scanline.service.engine.image import FinishReason, Image, Status
from scanline.service.errors import generation_error
from scanline.service.http.disconnect import WaitingClient
from scanline.service.http.sse import (
    KEEP_ALIVE_COMMENT,
    KEEP_ALIVE_SECONDS,
    StreamPacer,
    sse_event,
    sse_event_from_json,
)
from scanline.service.http.thread_pool import FairThreadPool

WAITING_SECONDS = 2.0  # between two `waiting` events
PIXELS_PER_EVENT = 4096  # at most, rounded down to whole rows
MAX_INLINE_VALUES = 16_384  # of an image whose events are written on the event loop, in about 1 ms
CHUNK_BYTES = 32_768  # events that are due together are sent in chunks of about this size
# Decimal text of each value, followed by a comma; 256 later, followed by the end of an update.
_DECIMALS = np.array([f"{i % 256}{',' if i < 256 else chr(10)}" for i in range(512)], "S4").view(
    "u4"
)


async def stream_events(
    generation: Generation,
    client: WaitingClient,
    pacer: StreamPacer,
    pool: FairThreadPool,
    *,
    granularity: Granularity = "auto",
    resumed: list[Cursor] | None = None,
    output: Output = "png",
    estimate_wait: Callable[[], tuple[int, float]] | None = None,
) -> AsyncIterator[bytes]:
    """Yield a generation as server-sent events, from the start or from a resumed position.

    The events are ``started`` (unless resumed), ``waiting`` while it is queued, ``pixels`` as they
    are drawn, ``image`` as each image finishes, and ``completed`` or ``error``. An event's id is
    the reader's position after it. Comments keep an idle connection open.

    Args:
        generation: The generation to read.
        client: The client that reads it.
        pacer: Decides how often ``pixels`` events are sent, by the number of open streams.
        pool: Threads that write the events of large images.
        granularity: Size of an update.
        resumed: The reader's position in each image; None to start from the beginning.
        output: Form of the pixels in ``image`` events.
        estimate_wait: Returns the number of images queued before it, and the estimated seconds.
            Without it, no ``waiting`` events are sent.

    Raises:
        ClientDisconnectedError: If the client disconnects.
    """
    loop = asyncio.get_running_loop()

    def waiting_position() -> tuple[int, float] | None:
        if estimate_wait is None or generation.status is not GenerationStatus.WAITING:
            return None
        return estimate_wait()

    if resumed is None:
        ahead, _ = waiting_position() or (0, 0.0)
        yield sse_event("started", Started.of(generation, ahead))
    last_sent = loop.time()
    events = _EventSource(generation, granularity, output, resumed)

    async def next_chunk(chunks: Iterator[bytes]) -> bytes | None:
        if generation.config.values > MAX_INLINE_VALUES and events.may_have_changed:
            return await pool.run(client, next, chunks, None)
        return next(chunks, None)

    with pacer.pace() as pause:
        while True:
            # Read before the pixels: if the generation is finished now, the events below contain
            # all of its pixels.
            version, finished = generation.version, generation.finished
            sent, chunks = False, _in_chunks(events.pending())
            while (chunk := await next_chunk(chunks)) is not None:
                sent = True
                yield chunk
                if len(chunk) >= CHUNK_BYTES:
                    await asyncio.sleep(0)  # lets other streams run during a long replay
            if finished:
                break
            if sent:
                last_sent = loop.time()
                await wait_until_finished(generation, client, pause(last_sent))
                if generation.version != version:  # saves one more wake-up
                    continue
            waits = estimate_wait is not None and generation.status is GenerationStatus.WAITING
            deadline = last_sent + (WAITING_SECONDS if waits else KEEP_ALIVE_SECONDS)
            await wait_for_change(generation, client, deadline - loop.time(), version)
            if loop.time() < deadline:  # changed, though perhaps by less than a whole row
                continue
            yield _idle_event(waiting_position())
            last_sent = loop.time()
    yield _final_event(generation)


def _idle_event(waiting_position: tuple[int, float] | None) -> bytes:
    """Return a ``waiting`` event if the generation waits, otherwise a comment.

    Args:
        waiting_position: Number of images queued before the generation, and the estimated seconds.
    """
    if waiting_position is None:
        return KEEP_ALIVE_COMMENT
    ahead, seconds = waiting_position
    waiting = Waiting(queue_position=ahead, estimated_seconds=round(seconds, 1))
    return sse_event("waiting", waiting)


def _final_event(generation: Generation) -> bytes:
    """Return the ``completed`` or ``error`` event of a finished generation."""
    if error := generation_error(generation):
        return sse_event("error", error.reply, END_ID)
    completed = Completed(
        id=generation.id,
        status=generation.status,
        usage=Usage.of(generation),
        warnings=generation.warnings,
    )
    return sse_event("completed", completed, END_ID)


def _in_chunks(events: Iterator[bytes]) -> Iterator[bytes]:
    """Join events into chunks of about ``CHUNK_BYTES``."""
    chunk = bytearray()
    for event in events:
        chunk += event
        if len(chunk) >= CHUNK_BYTES:
            yield bytes(chunk)
            chunk.clear()
    if chunk:
        yield bytes(chunk)


class _EventSource:
    """Pending events of one stream: the changes since the reader's position."""

    def __init__(
        self,
        generation: Generation,
        granularity: Granularity,
        output: Output,
        resumed: list[Cursor] | None,
    ) -> None:
        self._generation, self._granularity, self._output = generation, granularity, output
        self._cursors = [Cursor()] * len(generation.images) if resumed is None else resumed
        self._open = [image for image in generation.images if not self._cursors[image.index].ended]

    @property
    def may_have_changed(self) -> bool:
        """True if the first unfinished image has started; images start in order."""
        return bool(self._open) and self._open[0].status is not Status.WAITING

    def pending(self) -> Iterator[bytes]:
        """Yield the pending events, and advance the reader's position past each."""
        # Images start in order: behind the first waiting image, all are waiting.
        started = list(itertools.takewhile(lambda i: i.status is not Status.WAITING, self._open))
        # Chosen before the pixels are read, so that an image event follows all of its pixels.
        finished = [image for image in started if image.status is Status.FINISHED]
        for data in self._pixels(started):
            yield sse_event_from_json("pixels", data, format_cursors(self._cursors))
        for image in finished:
            self._cursors[image.index] = self._cursors[image.index]._replace(ended=True)
            reply = image_reply(self._generation, image, self._output)
            yield sse_event("image", reply, format_cursors(self._cursors))
        if finished:
            self._open = [i for i in self._open if not self._cursors[i.index].ended]

    def _pixels(self, images: list[Image]) -> Iterator[bytes]:
        """Yield the data of ``pixels`` events with all new pixels of the images."""
        width = self._generation.config.width
        event = _PixelsWriter()
        for image in images:
            cursor = self._cursors[image.index]
            revisions = image.revisions[cursor.revisions :]
            position = start = min([cursor.position, *revisions])
            stop = image.position
            if self._granularity == "row" and image.finish_reason in (None, FinishReason.LENGTH):
                stop -= stop % width
                start -= start % width
            # A revision counts as sent even if the row that it changes is not complete yet.
            cursor = Cursor(position, cursor.revisions + len(revisions))
            self._cursors[image.index] = cursor
            limit = PIXELS_PER_EVENT // width * width
            size = {"pixel": 1, "row": width, "auto": limit}[self._granularity]
            for first in range(start, stop, limit):
                end = min(first + limit, stop)
                event.add(image, first, end, size)
                self._cursors[image.index] = cursor._replace(position=end)
                if event.pixels >= limit:
                    yield event.to_json()
                    event = _PixelsWriter()
        if event.pixels:
            yield event.to_json()


class _PixelsWriter:
    """Writer of one ``pixels`` event, vectorized because writing value by value is far slower."""

    def __init__(self) -> None:
        self.pixels = 0
        self._values: list[NDArray[np.uint8]] = []
        self._updates: list[tuple[int, int]] = []  # image index and position
        self._ends: list[int] = []  # number of pixels up to the end of each update

    def add(self, image: Image, start: int, stop: int, size: int) -> None:
        """Add an image's pixels ``start … stop``, in updates of ``size`` pixels."""
        self._values.append(image.read(start, stop))
        self._updates += [(image.index, position) for position in range(start, stop, size)]
        offset = self.pixels - start
        self._ends += [offset + end for end in range(start + size, stop, size)]
        self.pixels += stop - start
        self._ends.append(self.pixels)

    def to_json(self) -> bytes:
        """Return the event's data, a ``Pixels`` object as JSON."""
        values = np.concatenate(self._values).astype(np.uint16)
        values[np.array(self._ends) - 1, -1] += 256
        texts = _DECIMALS[values].tobytes().translate(None, b"\0").decode().split("\n")
        updates = [
            f'{{"index":{index},"position":{position},"values":[{text}]}}'
            for (index, position), text in zip(self._updates, texts, strict=False)
        ]
        return f'{{"updates":[{",".join(updates)}]}}'.encode()
