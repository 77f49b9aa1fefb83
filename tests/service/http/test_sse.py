"""Tests of the event rate of streams, with a fake clock."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses

import numpy as np
import pytest
from numpy.typing import NDArray

from scanline.service.api.events import stream_events
from scanline.service.engine.generation import Generation, GenerationSpec
from scanline.service.engine.image import CanvasView, FinishReason
from scanline.service.http.disconnect import WaitingClient
from scanline.service.http.sse import (
    KEEP_ALIVE_SECONDS,
    MAX_EVENTS_IN_ALL,
    MAX_PAUSE,
    TICK,
    StreamPacer,
)
from scanline.service.http.thread_pool import FairThreadPool
from scanline.service.openai.events import stream_images
from scanline.service.openai.rendering import choose_rendering
from scanline.service.openai.requests import GenerationsRequest
from tests.fake_clock import run_skipping
from tests.service.fixtures import GREY
from tests.sse_client import parse_sse, rebuild

LARGE = dataclasses.replace(GREY, height=25, width=40)


async def read(generation: Generation, streams: StreamPacer) -> list[tuple[float, bytes]]:
    """Return a stream's parts, each with its time in seconds."""
    loop = asyncio.get_running_loop()
    gone = loop.create_task(asyncio.sleep(3600))
    events = stream_events(generation, WaitingClient("", gone), streams, FairThreadPool(1))
    parts = [(loop.time(), part) async for part in events]
    gone.cancel()
    return parts


async def draw(generation: Generation, values: NDArray[np.uint8]) -> None:
    """Draw the generation's only image within a second, pixel by pixel."""
    (image,) = generation.images
    published = np.zeros(1, np.int32)
    image.start(CanvasView(values, published))
    for position in range(1, LARGE.pixels + 1):
        await asyncio.sleep(1 / LARGE.pixels)
        published[0] = position
        if position == LARGE.pixels:
            image.finish(FinishReason.LENGTH, 0.0)
            generation.finish(generation.clock())
        generation.notify()


def crowd(count: int, cores: int = 4) -> tuple[StreamPacer, contextlib.ExitStack]:
    """Return a pacer with this many pixel streams, which end when the stack is closed."""
    streams, stack = StreamPacer(cores), contextlib.ExitStack()
    for _ in range(count):
        stack.enter_context(streams.pace())(0.0)
    return streams, stack


@pytest.mark.parametrize(
    ("count", "least", "most"), [(0, 55, 62), (MAX_EVENTS_IN_ALL // 10 - 1, 9, 12), (5000, 2, 4)]
)
def test_pixels_are_batched_to_the_event_rate(count: int, least: int, most: int) -> None:
    """A few streams send 60 events per second; the last pixels are sent at once."""
    generation = Generation("fake", LARGE, GenerationSpec(n=1, seed=0))
    row = (np.arange(LARGE.pixels) % 251).astype(np.uint8)[:, None]
    streams, stack = crowd(count)

    async def both() -> list[tuple[float, bytes]]:
        parts, _ = await asyncio.gather(read(generation, streams), draw(generation, row))
        return parts

    with stack:
        parts = run_skipping(both())
        with streams.pace() as pausing:
            pause = pausing(0.0)
    sent = parse_sse(b"".join(part for _, part in parts))
    np.testing.assert_array_equal(rebuild(sent, LARGE)[0], row)
    times = [time for time, part in parts if part.startswith(b"event: pixels")]
    assert least <= len(times) <= most
    assert np.diff(times[:-1]).min(initial=np.inf) >= pause - TICK / 2
    assert times[-1] == pytest.approx(1, abs=1e-6)
    with streams.pace() as pausing:
        assert pausing(0.0) == TICK  # no other stream is left


@pytest.mark.parametrize(
    ("cores", "count", "pause"),
    [
        (64, 1, TICK), (64, 4, TICK), (64, 5, 2 * TICK), (4, 4, TICK), (4, 13, 4 * TICK),
        (4, 80, 80 / MAX_EVENTS_IN_ALL), (4, 1000, MAX_PAUSE), (2, 2, TICK), (2, 4, 2 * TICK),
        (1, 1, TICK), (1, 2, 2 * TICK),
    ],
)  # fmt: skip
def test_streams_with_pixels_share_the_event_budget(cores: int, count: int, pause: float) -> None:
    streams, stack = crowd(count - 1, cores)
    with stack, streams.pace(), streams.pace() as pausing:
        assert pausing(0.0) == pausing(0.0) == pytest.approx(pause)


def test_streams_send_at_the_same_ticks() -> None:
    times: list[set[float]] = []

    async def one(generation: Generation, streams: StreamPacer, late: float) -> None:
        await asyncio.sleep(late)
        parts = await read(generation, streams)
        pixels = [round(time, 4) for time, part in parts if part.startswith(b"event: pixels")]
        times.append({*pixels[1:-1]})  # the first and the last are sent at once

    async def all_of_them() -> None:
        streams, spec = StreamPacer(4), GenerationSpec(n=1, seed=0)
        blank = np.zeros((LARGE.pixels, 1), np.uint8)
        generations = [Generation("fake", LARGE, spec) for _ in range(3)]
        await asyncio.gather(
            *(one(each, streams, 0.0037 * i) for i, each in enumerate(generations)),
            *(draw(each, blank) for each in generations),
        )

    run_skipping(all_of_them())
    assert len(set.union(*times)) <= max(len(each) for each in times) + 1
    assert min(len(each) for each in times) > 50


def test_an_idle_stream_sends_keep_alive_comments() -> None:
    generation = Generation("fake", GREY, GenerationSpec(n=1, seed=0))

    async def end() -> None:
        await asyncio.sleep(3.5 * KEEP_ALIVE_SECONDS)
        generation.images[0].finish(FinishReason.CANCELLED, None)
        generation.finish(generation.clock())

    async def both() -> list[tuple[float, bytes]]:
        parts, _ = await asyncio.gather(read(generation, StreamPacer(4)), end())
        return parts

    parts = run_skipping(both())
    comments = [round(time) for time, part in parts if part.startswith(b":")]
    assert comments == [round(k * KEEP_ALIVE_SECONDS) for k in (1, 2, 3)]
    assert [event.name for event in parse_sse(b"".join(part for _, part in parts))] == [
        "started", "image", "completed",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["rows", "looks"])
def test_changes_without_events_do_not_delay_keep_alive_comments(kind: str) -> None:
    """A row or an image may take long; a proxy would close the silent connection."""
    generation = Generation("fake", GREY, GenerationSpec(n=1, seed=0))
    generation.started = generation.clock()  # waiting generations send more often
    (image,) = generation.images
    published = np.zeros(1, np.int32)

    async def draw_slowly() -> None:
        image.start(CanvasView(np.zeros((GREY.pixels, 1), np.uint8), published))
        for _ in range(round(3.5 * KEEP_ALIVE_SECONDS)):
            published[0] = min(published[0] + 1, GREY.width - 1)
            generation.notify()
            await asyncio.sleep(1)
        image.finish(FinishReason.CANCELLED, None)
        generation.finish(generation.clock())

    async def read_all() -> list[tuple[float, bytes]]:
        loop = asyncio.get_running_loop()
        client = WaitingClient("", loop.create_task(asyncio.sleep(3600)))
        if kind == "rows":
            events = stream_events(
                generation, client, StreamPacer(4), FairThreadPool(1), granularity="row",
                estimate_wait=lambda: (0, 0.0),
            )  # fmt: skip
        else:
            rendering = choose_rendering(GenerationsRequest(prompt=""), GREY)
            events = stream_images(
                generation,
                client,
                "image_generation",
                rendering,
                0,
                FairThreadPool(1),
            )
        drawing = asyncio.create_task(draw_slowly())
        parts = [(loop.time(), part) async for part in events]
        await drawing
        client.gone.cancel()
        return parts

    comments = [round(time) for time, part in run_skipping(read_all()) if part.startswith(b":")]
    assert comments == [round(k * KEEP_ALIVE_SECONDS) for k in (1, 2, 3)]
