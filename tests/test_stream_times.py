"""How often a stream speaks, in a loop whose time passes without waiting for it."""

from __future__ import annotations

import asyncio
import dataclasses

import numpy as np

from scanline.service.api import events
from scanline.service.api.events import stream_events
from scanline.service.generation import FinishReason, Generation, Place, Spec
from scanline.service.http.sse import KEEP_ALIVE_SECONDS
from tests.clocks import run_skipping
from tests.service_fixtures import GREY, parse_sse, rebuild

LARGE = dataclasses.replace(GREY, height=25, width=40)


async def read(generation: Generation) -> list[tuple[float, bytes]]:
    """Give a stream's parts, each with the second it came."""
    loop = asyncio.get_running_loop()
    gone = loop.create_task(asyncio.sleep(3600))
    parts = [(loop.time(), part) async for part in stream_events(generation, gone)]
    gone.cancel()
    return parts


def test_pixels_drawn_quicker_than_anyone_sees_come_sixty_times_a_second() -> None:
    generation = Generation("fake", LARGE, Spec(n=1, seed=0))
    (image,) = generation.images
    row = (np.arange(LARGE.pixels) % 251).astype(np.uint8)[:, None]
    published = np.zeros(1, np.int32)
    image.run(0, Place(row, published))

    async def draw() -> None:  # a thousand pixels in a second, one at a time
        for position in range(1, LARGE.pixels + 1):
            await asyncio.sleep(1 / LARGE.pixels)
            published[0] = position
            if position == LARGE.pixels:
                image.finish(FinishReason.LENGTH, 0.0)
                generation.finish(generation.clock())
            generation.wake()

    async def both() -> list[tuple[float, bytes]]:
        parts, _ = await asyncio.gather(read(generation), draw())
        return parts

    parts = run_skipping(both())
    sent = parse_sse(b"".join(part for _, part in parts))
    np.testing.assert_array_equal(rebuild(sent, LARGE)[0], row)
    times = [time for time, part in parts if part.startswith(b"event: pixels")]
    assert 55 <= len(times) <= events.EVENTS_PER_SECOND + 2  # a first and a last beside the sixty
    assert np.diff(times[:-1]).min() >= 1 / events.EVENTS_PER_SECOND - 1e-6


def test_a_stream_without_news_says_that_it_lives() -> None:
    generation = Generation("fake", GREY, Spec(n=1, seed=0))

    async def end() -> None:
        await asyncio.sleep(3.5 * KEEP_ALIVE_SECONDS)
        generation.images[0].finish(FinishReason.CANCELLED, None)
        generation.finish(generation.clock())

    async def both() -> list[tuple[float, bytes]]:
        parts, _ = await asyncio.gather(read(generation), end())
        return parts

    parts = run_skipping(both())
    comments = [round(time) for time, part in parts if part.startswith(b":")]
    assert comments == [round(k * KEEP_ALIVE_SECONDS) for k in (1, 2, 3)]
    assert [event.name for event in parse_sse(b"".join(part for _, part in parts))] == [
        "started", "image", "completed",
    ]  # fmt: skip
