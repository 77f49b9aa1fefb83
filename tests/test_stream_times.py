"""How often a stream speaks, in a loop whose time passes without waiting for it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses

import numpy as np
import pytest

from scanline.service.api.events import stream_events
from scanline.service.generation import FinishReason, Generation, Place, Spec
from scanline.service.http.sse import (
    EVENTS_IN_ALL,
    EVENTS_PER_SECOND,
    KEEP_ALIVE_SECONDS,
    LONGEST_PAUSE,
    Streams,
)
from tests.clocks import run_skipping
from tests.service_fixtures import GREY, no_streams, parse_sse, rebuild

LARGE = dataclasses.replace(GREY, height=25, width=40)


async def read(generation: Generation, streams: Streams) -> list[tuple[float, bytes]]:
    """Give a stream's parts, each with the second it came."""
    loop = asyncio.get_running_loop()
    gone = loop.create_task(asyncio.sleep(3600))
    events = stream_events(generation, gone, streams)
    parts = [(loop.time(), part) async for part in events]
    gone.cancel()
    return parts


def crowd(count: int) -> tuple[Streams, contextlib.ExitStack]:
    """Give so many streams that tell of pixels until the stack is closed."""
    streams, stack = no_streams(), contextlib.ExitStack()
    for _ in range(count):
        stack.enter_context(streams.share())()
    return streams, stack


@pytest.mark.parametrize(("count", "least", "most"), [(0, 55, 62), (47, 9, 12), (5000, 2, 4)])
def test_pixels_drawn_quicker_than_anyone_sees_come_together(
    count: int, least: int, most: int
) -> None:
    """Sixty times a second where streams are few, and at once when the last one is drawn."""
    generation = Generation("fake", LARGE, Spec(n=1, seed=0))
    (image,) = generation.images
    row = (np.arange(LARGE.pixels) % 251).astype(np.uint8)[:, None]
    published = np.zeros(1, np.int32)
    image.run(0, Place(row, published))
    streams, stack = crowd(count)

    async def draw() -> None:  # a thousand pixels in a second, one at a time
        for position in range(1, LARGE.pixels + 1):
            await asyncio.sleep(1 / LARGE.pixels)
            published[0] = position
            if position == LARGE.pixels:
                image.finish(FinishReason.LENGTH, 0.0)
                generation.finish(generation.clock())
            generation.wake()

    async def both() -> list[tuple[float, bytes]]:
        parts, _ = await asyncio.gather(read(generation, streams), draw())
        return parts

    with stack:
        parts = run_skipping(both())
        with streams.share() as pausing:
            pause = pausing()
    sent = parse_sse(b"".join(part for _, part in parts))
    np.testing.assert_array_equal(rebuild(sent, LARGE)[0], row)
    times = [time for time, part in parts if part.startswith(b"event: pixels")]
    assert least <= len(times) <= most
    assert np.diff(times[:-1]).min(initial=np.inf) >= pause - 1e-6
    assert times[-1] == pytest.approx(1, abs=1e-6)
    with streams.share() as pausing:
        assert pausing() == 1 / EVENTS_PER_SECOND  # nobody else is left


def test_streams_that_tell_share_what_the_event_loop_can_send() -> None:
    for count, pause in (
        (1, 1 / EVENTS_PER_SECOND), (8, 8 / EVENTS_IN_ALL), (120, 120 / EVENTS_IN_ALL),
        (100_000, LONGEST_PAUSE),
    ):  # fmt: skip
        streams, stack = crowd(count - 1)
        with stack, streams.share(), streams.one_more(), streams.share() as pausing:
            assert pausing() == pausing() == pause


def test_a_stream_without_news_says_that_it_lives() -> None:
    generation = Generation("fake", GREY, Spec(n=1, seed=0))

    async def end() -> None:
        await asyncio.sleep(3.5 * KEEP_ALIVE_SECONDS)
        generation.images[0].finish(FinishReason.CANCELLED, None)
        generation.finish(generation.clock())

    async def both() -> list[tuple[float, bytes]]:
        parts, _ = await asyncio.gather(read(generation, no_streams()), end())
        return parts

    parts = run_skipping(both())
    comments = [round(time) for time, part in parts if part.startswith(b":")]
    assert comments == [round(k * KEEP_ALIVE_SECONDS) for k in (1, 2, 3)]
    assert [event.name for event in parse_sse(b"".join(part for _, part in parts))] == [
        "started", "image", "completed",
    ]  # fmt: skip
