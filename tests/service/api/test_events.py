"""Events of a stream: rows, pixels, revisions by particles, and large images."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

from scanline.model.sampling import SamplingParams
from scanline.service.api.cursors import Cursor
from scanline.service.api.events import _EventSource
from scanline.service.api.requests import Granularity
from scanline.service.engine.generation import Generation, GenerationSpec
from scanline.service.engine.image import CanvasView, FinishReason
from tests.service.fixtures import COLOUR, GREY, open_stream, streamed
from tests.sse_client import Event, parse_sse, rebuild


def test_changes_while_an_event_is_sent_are_not_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scanline.service.api.events.KEEP_ALIVE_SECONDS", 0.2)
    generation = Generation("fake", GREY, GenerationSpec(n=2, seed=0))
    published = np.zeros(1, np.int32)
    row = np.arange(GREY.pixels, dtype=np.uint8)[:, None]
    generation.images[0].start(CanvasView(row, published))

    async def read() -> list[Event]:
        async with open_stream(generation) as stream:
            raw = await anext(stream)
            published[0] = 7
            raw += await anext(stream)
            published[0] = 9  # while the last event is being sent; no change follows
            generation.notify()
            raw += await anext(stream)
        return parse_sse(raw)

    events = asyncio.run(read())
    assert [event.name for event in events] == ["started", "pixels", "pixels"]
    assert rebuild(events, GREY)[0].ravel().tolist() == list(range(9))


def test_resuming_with_another_granularity_sends_every_revision() -> None:
    generation = Generation(
        "fake", GREY, GenerationSpec(n=2, seed=0, sampling=SamplingParams(particles=2))
    )
    drawn = [np.full((GREY.pixels, 1), value, np.uint8) for value in (10, 20, 30)]
    positions = [np.array([13], np.int32) for _ in drawn]
    views = [CanvasView(*view) for view in zip(drawn, positions, strict=True)]
    for image, view in zip(generation.images, views[:2], strict=True):
        image.start(view)

    async def read(granularity: Granularity, seen: str | None) -> list[Event]:
        async with open_stream(generation, granularity, seen) as stream:
            raw = b"".join([await anext(stream) for _ in range(1 if seen else 2)])
        return parse_sse(raw)

    events = asyncio.run(read("auto", None))
    generation.images[0].switch_view(views[2], 12)  # rows are five pixels wide
    positions[1][0] = 20  # causes an event
    events += asyncio.run(read("row", events[-1].id))
    for position in positions:
        position[0] = 25
    events += asyncio.run(read("auto", events[-1].id))
    shown = [0] * 25
    for update in [u for e in events if e.name == "pixels" for u in e.data["updates"]]:
        if update["index"] == 0:
            end = update["position"] + len(update["values"])
            shown[update["position"] : end] = update["values"]
    assert shown == [10] * 12 + [30] * 13


def test_rows_are_sent_whole_except_the_last_of_a_cancelled_image() -> None:
    generation = Generation("fake", GREY, GenerationSpec(n=2, seed=0))
    first, second = generation.images
    published = np.zeros((2, 1), np.int32)
    for slot, image in enumerate(generation.images):
        image.start(CanvasView(np.arange(GREY.pixels, dtype=np.uint8)[:, None], published[slot]))

    async def read() -> list[Event]:
        async with open_stream(generation, "row") as stream:
            raw = await anext(stream)
            for position in (7, 12, 30):  # rows are five pixels wide
                published[:] = position
                if position == 30:
                    first.finish(FinishReason.LENGTH, float(GREY.pixels))
                    published[1] = 13
                generation.notify()
                raw += await anext(stream)
            second.finish(FinishReason.CANCELLED, None)
            generation.finish(time.monotonic())
            raw += b"".join([part async for part in stream])
        return parse_sse(raw)

    events = asyncio.run(read())
    assert [e.name for e in events] == [
        "started", "pixels", "pixels", "pixels", "image", "pixels", "image", "completed",
    ]  # fmt: skip
    sizes = [
        [(u["index"], u["position"], len(u["values"])) for u in e.data["updates"]]
        for e in events if e.name == "pixels"
    ]  # fmt: skip
    assert sizes == [
        [(0, 0, 5), (1, 0, 5)],
        [(0, 5, 5), (1, 5, 5)],
        [(0, 10, 5), (0, 15, 5), (0, 20, 5), (0, 25, 5)],
        [(1, 10, 3)],
    ]
    assert [e.data["index"] for e in events if e.name == "image"] == [0, 1]


def test_a_long_replay_yields_to_other_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scanline.service.api.events.CHUNK_BYTES", 1)
    generation = Generation("fake", GREY, GenerationSpec(n=3, seed=0))
    for image in generation.images:
        image.start(
            CanvasView(np.zeros((GREY.pixels, 1), np.uint8), np.full(1, GREY.pixels, np.int32))
        )
        image.finish(FinishReason.LENGTH, 1.0)
    generation.finish(time.monotonic())
    seen: list[str] = []

    async def read() -> None:
        async with open_stream(generation) as stream:
            async for part in stream:
                asyncio.get_running_loop().call_soon(seen.append, "other")
                seen.append(parse_sse(part, complete=False)[0].name)

    asyncio.run(read())
    assert seen[:6] == ["started", "pixels", "other", "other", "image", "other"]


def test_large_images_are_sent_in_several_events() -> None:
    """A stream can be resumed after each of them."""
    config = replace(COLOUR, height=96, width=96)
    generation = Generation("fake", config, GenerationSpec(n=1, seed=0))
    (image,) = generation.images
    pixels = np.random.default_rng(0).integers(0, 256, (config.pixels, 3), np.uint8)
    image.start(CanvasView(pixels, np.full(1, config.pixels, np.int32)))
    image.finish(FinishReason.LENGTH, 1.0)
    generation.finish(time.monotonic())

    for granularity in get_args(Granularity):
        events = streamed(generation, granularity)
        pixel_events = [event for event in events if event.name == "pixels"]
        sizes = [
            sum(len(u["values"]) // 3 for u in event.data["updates"]) for event in pixel_events
        ]
        assert sizes == [4032, 4032, 1152]  # whole rows, 4096 pixels at most
        np.testing.assert_array_equal(rebuild(events, config)[0], pixels)
        rest = streamed(generation, granularity, pixel_events[0].id)
        assert [event.data for event in rest] == [event.data for event in events[2:]]


def test_rows_are_sent_whole_after_a_switch_to_another_particle() -> None:
    generation = Generation("fake", GREY, GenerationSpec(n=1, seed=0))
    published = np.full(1, 15, np.int32)
    view = CanvasView(np.arange(GREY.pixels, dtype=np.uint8)[:, None], published)
    (image,) = generation.images
    image.start(view)

    async def read() -> list[Any]:
        async with open_stream(generation, "row") as stream:
            raw = await anext(stream) + await anext(stream)
            image.switch_view(view, 7)
            generation.notify()
            raw += await anext(stream)
        return parse_sse(raw)

    events = asyncio.run(read())
    positions = [[u["position"] for u in e.data["updates"]] for e in events if e.name == "pixels"]
    assert positions == [[0, 5, 10], [5, 10]]


def test_each_switch_of_the_particle_is_sent_once() -> None:
    generation = Generation("fake", GREY, GenerationSpec(n=1, seed=0))
    view = CanvasView(np.zeros((GREY.pixels, 1), np.uint8), np.full(1, 15, np.int32))
    (image,) = generation.images
    image.start(view)
    source = _EventSource(generation, "auto", "png", None)
    for first in (0, 7, 9):
        image.switch_view(view, first)
        (event,) = parse_sse(b"".join(source.pending()), complete=False)
        assert [update["position"] for update in event.data["updates"]] == [first]
        assert list(source.pending()) == []


def test_resuming_by_rows_sends_no_pixel_again() -> None:
    generation = Generation("fake", GREY, GenerationSpec(n=1, seed=0))
    published = np.full(1, 8, np.int32)
    generation.images[0].start(CanvasView(np.zeros((GREY.pixels, 1), np.uint8), published))
    source = _EventSource(generation, "row", "png", [Cursor(7)])
    assert list(source.pending()) == []
    assert source._cursors == [Cursor(7)]
