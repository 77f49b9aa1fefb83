"""A generation as it is read: waiting for news, and server-sent events."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Literal

from fastapi.sse import format_sse_event

from scanline.service.generation import FinishReason, Generation, Image, Status
from scanline.service.http.errors import error_body
from scanline.service.pictures import to_png

Granularity = Literal["auto", "row", "pixel"]

EVENTS_PER_SECOND = 60
PIXELS_PER_EVENT = 4096  # of many images; one image is never split
KEEP_ALIVE_SECONDS = 15.0


class ClientGoneError(Exception):
    """The client closed its connection before the answer was complete."""


async def _called_back(
    register: Callable[[Callable[[], None]], None], gone: asyncio.Task[Any], seconds: float | None
) -> bool:
    """Wait until another thread calls what is registered; False if ``seconds`` pass first.

    Raises ``ClientGoneError`` as soon as ``gone`` is done.
    """
    loop = asyncio.get_running_loop()
    called: asyncio.Future[None] = loop.create_future()

    def resolve() -> None:
        if not called.done():
            called.set_result(None)

    def wake() -> None:
        # The loop may be closed by the time the engine calls.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(resolve)

    register(wake)
    await asyncio.wait({called, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    if gone.done():
        raise ClientGoneError
    return called.done()


async def news(
    generation: Generation,
    gone: asyncio.Task[Any],
    seconds: float | None,
    seen: int | None = None,
) -> bool:
    """Wait for a generation's next change; False if ``seconds`` pass without one.

    ``seen`` is its ``changes`` when it was last read, so that none in between is missed. Raises
    ``ClientGoneError`` as soon as ``gone`` is done.
    """
    return await _called_back(lambda wake: generation.when_news(wake, seen), gone, seconds)


async def wait_finished(generation: Generation, gone: asyncio.Task[Any]) -> None:
    """Wait for a generation's end; raises ``ClientGoneError`` if the client leaves before it."""
    await _called_back(generation.when_finished, gone, None)


def usage(generation: Generation) -> dict[str, float | int]:
    """Count what a generation took: pixels drawn, seconds in all and in the queue."""
    now = generation.clock() if generation.ended is None else generation.ended
    started = now if generation.started is None else generation.started
    seconds = now - started
    return {
        "pixels": generation.drawn,
        "seconds": round(seconds, 4),
        "queue_seconds": round(started - generation.created, 4),
        "pixels_per_second": round(generation.drawn / seconds, 1) if seconds > 0 else 0.0,
    }


def bits_per_dim(generation: Generation, image: Image) -> float | None:
    """Give a finished image's exact bits/dim under the model; None while it is not finished.

    All values count, known ones too, at temperature 1 and with the request's label.
    """
    if image.bits is None:
        return None
    return round(image.bits / generation.config.dims, 4)


def image_json(generation: Generation, image: Image, output: str = "png") -> dict[str, Any]:
    """Describe an image; its pixels as base64 PNG or, for ``values``, as a flat list."""
    body: dict[str, Any] = {
        "index": image.index,
        "seed": image.seed,
        "status": image.status,
        "finish_reason": image.finish_reason,
        "position": image.position,
        "bits_per_dim": bits_per_dim(generation, image),
    }
    done = image.status is Status.FINISHED
    pixels = image.read(0, generation.config.pixels) if done else None
    if output == "values":
        body["values"] = None if pixels is None else pixels.ravel().tolist()
    else:
        png = None if pixels is None else to_png(pixels, generation.config)
        body["png"] = None if png is None else base64.b64encode(png).decode()
    return body


async def stream_events(
    generation: Generation,
    gone: asyncio.Task[Any],
    *,
    granularity: Granularity = "auto",
    last_event_id: int | None = None,
    output: str = "png",
) -> AsyncIterator[bytes]:
    """Yield a generation as server-sent events, from the start or, resumed, all that may lack.

    ``started`` opens a stream that is not resumed; then ``pixels`` as they are drawn, ``image``
    as each is finished, its pixels as ``output`` says, and ``completed`` or ``error`` at the end.
    Comments keep an idle connection open. Raises ``ClientGoneError`` when the client leaves.
    """
    config, loop = generation.config, asyncio.get_running_loop()
    sequence = last_event_id or 0
    if last_event_id is None:
        yield _event("started", {
            "id": generation.id,
            "model": generation.model,
            "width": config.width,
            "height": config.height,
            "channels": config.channels,
            "images": [{"index": i.index, "seed": i.seed} for i in generation.images],
            "queue_position": generation.queue_position,
        })  # fmt: skip
    cursors = [0] * len(generation.images)
    told: set[int] = set()
    while True:
        # Read before the pixels: what is finished now has all of its pixels below.
        seen, finished = generation.changes, generation.finished
        complete = [i for i in generation.images if i.status is Status.FINISHED]
        before = sequence
        for updates in _updates(generation, cursors, granularity):
            sequence += 1
            yield _event("pixels", {"updates": updates}, sequence)
            await asyncio.sleep(0)  # a long replay leaves room for others
        for image in complete:
            if image.index not in told:
                told.add(image.index)
                yield _event("image", image_json(generation, image, output))
        if finished:
            break
        sent = loop.time()
        while not await news(generation, gone, KEEP_ALIVE_SECONDS, seen):
            yield format_sse_event(comment="keep-alive")
        if sequence > before:
            await asyncio.sleep(max(0.0, sent + 1 / EVENTS_PER_SECOND - loop.time()))
    if generation.error:
        yield _event("error", error_body(500, generation.error, code="generation_failed"))
    else:
        yield _event("completed", {"id": generation.id, "usage": usage(generation)})


def _updates(
    generation: Generation, cursors: list[int], granularity: Granularity
) -> Iterator[list[dict[str, Any]]]:
    """Take what each image has beyond its cursor, an event's worth at a time; move cursors on."""
    width = generation.config.width
    updates: list[dict[str, Any]] = []
    pixels_held = 0
    for image in generation.images:
        start, stop = cursors[image.index], image.position
        if granularity == "row" and image.finish_reason in (None, FinishReason.LENGTH):
            stop -= stop % width
        if stop <= start:
            continue
        pixels = image.read(start, stop)
        size = {"pixel": 1, "row": width, "auto": stop - start}[granularity]
        updates += [
            {
                "index": image.index,
                "position": start + first,
                "values": pixels[first : first + size].ravel().tolist(),
            }
            for first in range(0, stop - start, size)
        ]
        cursors[image.index] = stop
        pixels_held += stop - start
        if pixels_held >= PIXELS_PER_EVENT:
            yield updates
            updates, pixels_held = [], 0
    if updates:
        yield updates


def _event(name: str, data: dict[str, Any], sequence: int | None = None) -> bytes:
    identifier = None if sequence is None else str(sequence)
    return format_sse_event(
        event=name, data_str=json.dumps(data, separators=(",", ":")), id=identifier
    )
