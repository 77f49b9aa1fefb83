"""Streams: each pixel once and in order, also after a broken connection."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

from scanline.model.config import ModelConfig
from scanline.service.api import cursors as cursors_module
from scanline.service.api.cursors import END_ID, Cursor, format_cursors, parse_cursors
from scanline.service.api.requests import Granularity
from scanline.service.engine.generation import Generation, GenerationSpec
from scanline.service.engine.image import CanvasView, FinishReason
from scanline.service.http.errors import ApiError
from tests.service.api.fixtures import CONFIGS, LiveServer, StepwiseDecoder, png, stepwise_server
from tests.service.fake_decoders import fake_image
from tests.service.fixtures import (
    COLOUR,
    GREY,
    check_error,
    encode,
    idle,
    random_picture,
    streamed,
    until,
)
from tests.sse_client import Event, parse_sse, rebuild


def check_stream(events: list[Event], config: ModelConfig) -> list[Event]:
    """Check the order, ids and pixels of a complete stream, and return its ``image`` events."""
    names = [event.name for event in events]
    assert names.count("started") == 1
    assert names[0] == "started"
    assert names[-1] == "completed"
    assert names.count("completed") == 1
    ids = [e.id for e in events if e.id is not None]
    assert len(set(ids)) == len(ids)
    assert [e.name for e in events if e.id == END_ID] == ["completed"]
    assert all((e.id is None) == (e.name == "started") for e in events)
    images = [event for event in events if event.name == "image"]
    drawn = rebuild(events, config)
    assert sorted(drawn) == sorted(image.data["index"] for image in images)
    for image in images:
        np.testing.assert_array_equal(drawn[image.data["index"]], png(image.data, config))
    return images


@pytest.mark.parametrize("granularity", ["auto", "row", "pixel"])
@pytest.mark.parametrize("model", CONFIGS)
def test_pixels_of_a_stream_equal_its_images(api: LiveServer, granularity: str, model: str) -> None:
    config, n = CONFIGS[model], 3
    body = {"model": model, "n": n, "seed": 4, "granularity": granularity}
    reply = api.samples(**body, stream=True)
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["cache-control"] == "no-cache"
    assert reply.headers["x-accel-buffering"] == "no"
    events = parse_sse(reply.content)
    images = check_stream(events, config)
    started = events[0].data
    assert started["id"] == reply.headers["x-generation-id"]
    assert reply.headers["x-seed"] == "4"
    assert started["model"] == model
    assert (started["width"], started["height"]) == (config.width, config.height)
    assert started["channels"] == config.channels
    labels = [event.data["label"] for event in events if event.name == "image"]
    assert started["images"] == [
        {"index": j, "seed": 4 + j, "label": label}
        for j, label in zip(range(n), labels, strict=True)
    ]
    assert started["queue_position"] == 0
    sizes = {
        len(update["values"]) // config.channels
        for event in events if event.name == "pixels" for update in event.data["updates"]
    }  # fmt: skip
    if granularity != "auto":
        assert sizes == {1 if granularity == "pixel" else config.width}
    plain = api.samples(model=model, n=n, seed=4).json()
    for image in images:
        same = plain["images"][image.data["index"]]
        assert image.data["png"] == same["png"]
        assert image.data["bits_per_dim"] == same["bits_per_dim"]
    assert events[-1].data["usage"]["pixels"] == n * config.pixels
    asked = api.client.get(f"/v1/generations/{started['id']}").json()
    assert asked["usage"] == events[-1].data["usage"]


def test_streams_of_completions_contain_the_known_pixels(api: LiveServer) -> None:
    picture = random_picture(COLOUR, 2)
    reply = api.complete(
        encode(picture), model="colour", known_rows=2, n=3, stream="true", granularity="row"
    )
    events = parse_sse(reply.content)
    check_stream(events, COLOUR)
    known = np.asarray(picture).reshape(-1, 3)[: 2 * COLOUR.width]
    for image in rebuild(events, COLOUR).values():
        np.testing.assert_array_equal(image[: 2 * COLOUR.width], known)
    assert events[-1].data["usage"]["pixels"] == 3 * 2 * COLOUR.width


def read_some(api: LiveServer, url: str, events: int, method: str = "GET", **request: Any) -> bytes:
    """Read the first events of a stream, and close the connection."""
    raw = b""
    with api.client.stream(method, url, **request) as reply:
        assert reply.status_code == 200
        for part in reply.iter_raw():
            raw += part
            if raw.count(b"\n\n") + raw.count(b"\r\n\r\n") >= events:
                break
    return raw


def test_resumed_stream_is_complete(
    stepwise: tuple[LiveServer, StepwiseDecoder],
) -> None:
    api, decoder = stepwise
    decoder.permit(7)
    body = {"n": 2, "seed": 5, "stream": True}
    first = parse_sse(read_some(api, "/v1/samples", 2, "POST", json=body), complete=False)
    assert [e.name for e in first[:2]] == ["started", "pixels"]
    identifier = first[0].data["id"]
    generation = api.app_state.models["fake"].engine.queue.find(identifier)
    assert generation is not None
    until(lambda: generation.readers == 0, "the disconnect")
    assert not generation.finished
    decoder.permit(4)
    url, headers = f"/v1/generations/{identifier}/events", {"Last-Event-ID": first[-1].id or ""}
    second = parse_sse(read_some(api, url, 1, headers=headers), complete=False)
    assert second[0].name == "pixels"
    decoder.opened.set()
    headers = {"Last-Event-ID": second[-1].id or ""}
    third = parse_sse(api.client.get(url, headers=headers).content)
    # Nothing is sent twice: the three parts are one complete stream.
    images = check_stream(first + second + third, GREY)
    for image in images:
        expected = fake_image(GREY, generation.spec, image.data["index"])
        np.testing.assert_array_equal(png(image.data, GREY), expected)
    finished = {"Last-Event-ID": third[-2].id or ""}
    assert [e.name for e in parse_sse(api.client.get(url, headers=finished).content)] == [
        "completed"
    ]
    # A finished generation can be read again from the start.
    for granularity in ("auto", "row", "pixel"):
        over = api.client.get(url, params={"granularity": granularity})
        assert len(check_stream(parse_sse(over.content), GREY)) == 2
    for wrong in (
        "x",
        "-1",
        "1",
        "3*1",
        "0*1,1,1",
        "9" * 5000,
        "1," * 5000,
    ):
        reply = api.client.get(url, headers={"Last-Event-ID": wrong})
        check_error(reply, 400, "invalid_value", "last-event-id")
    # An EventSource reconnects after the end, until it receives a 204.
    ended = api.client.get(url, headers={"Last-Event-ID": third[-1].id or ""})
    assert (ended.status_code, ended.content) == (204, b"")


def test_event_ids_encode_the_read_position() -> None:
    generation = Generation("fake", GREY, GenerationSpec(n=5, seed=0))
    whole = Cursor(30, ended=True)
    cursors = [whole, whole, Cursor(12, 3), Cursor(7, 1, True), Cursor()]
    assert format_cursors(cursors) == "2*30!,12.3,7.1!,0"
    assert parse_cursors("2*30!,12.3,7.1!,0", generation) == cursors
    assert parse_cursors("5*31", generation) == [Cursor(30)] * 5  # limited to the number of pixels


def test_event_id_with_too_many_images_is_refused_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursors_module, "Cursor", lambda *_: pytest.fail("created a cursor"))
    with pytest.raises(ApiError):
        parse_cursors("9999999*0", Generation("fake", GREY, GenerationSpec(n=1, seed=0)))


def test_a_long_replay_is_split_into_several_events() -> None:
    config = replace(COLOUR, height=32, width=32)
    generation = Generation("fake", config, GenerationSpec(n=10, seed=0))
    pixels = np.random.default_rng(0).integers(0, 256, (10, 1024, 3), np.uint8)
    for image, row in zip(generation.images, pixels, strict=True):
        image.start(CanvasView(row, np.full(1, 1024, np.int32)))
        image.finish(FinishReason.LENGTH, 1024.0)
    generation.finish(time.monotonic())

    for granularity in get_args(Granularity):
        events = streamed(generation, granularity)
        check_stream(events, config)
        ids = [event.id for event in events if event.name == "pixels"]
        assert ids == ["4*1024,6*0", "8*1024,2*0", "10*1024"]
        drawn = rebuild(events, config)
        np.testing.assert_array_equal(np.stack([drawn[j] for j in range(10)]), pixels)


def test_event_source_reconnects_well_within_the_grace_period(api: LiveServer) -> None:
    """Firefox reconnects after 5 s, Chrome after 3 s, unless the stream says otherwise."""
    stream = api.samples(seed=1, stream=True)
    url = f"/v1/generations/{stream.headers['x-generation-id']}/events"
    events = parse_sse(stream.content)
    resumed = api.client.get(url, headers={"Last-Event-ID": events[1].id or ""})
    for raw in (stream.content, resumed.content):
        first, _, rest = raw.partition(b"\n")
        name, milliseconds = first.split(b": ")
        assert name == b"retry"
        assert int(milliseconds) / 1000 * 10 <= api.app_state.settings.grace_seconds
        assert b"retry" not in rest
    assert parse_sse(resumed.content)[-1] == events[-1]


def test_the_last_event_id_may_be_a_query_parameter(api: LiveServer) -> None:
    """EventSource polyfills that cannot send headers send ``lastEventId``."""
    stream = api.samples(n=2, seed=1, stream=True)
    url = f"/v1/generations/{stream.headers['x-generation-id']}/events"
    seen = parse_sse(stream.content)[1].id
    assert seen is not None
    by_header = api.client.get(url, headers={"Last-Event-ID": seen}).content
    assert api.client.get(url, params={"lastEventId": seen}).content == by_header
    assert parse_sse(by_header)[0].name == "pixels"
    from_start = api.client.get(url, params={"lastEventId": ""}).content
    assert parse_sse(from_start)[0].name == "started"
    assert api.client.get(url, params={"lastEventId": END_ID}).status_code == 204
    # A browser's own header is newer than an id in the page's URL.
    headers = {"Last-Event-ID": END_ID}
    assert api.client.get(url, params={"lastEventId": seen}, headers=headers).status_code == 204
    wrong = api.client.get(url, params={"lastEventId": "x"})
    check_error(wrong, 400, "invalid_value", "last-event-id")


def test_stream_that_is_not_resumed_is_cancelled_after_the_grace_period() -> None:
    with stepwise_server(grace_seconds=0.05) as (api, decoder):
        engine = api.app_state.models["fake"].engine
        decoder.permit(3)
        raw = read_some(api, "/v1/samples", 1, "POST", json={"n": 9, "stream": True})
        generation = engine.queue.find(parse_sse(raw, complete=False)[0].data["id"])
        assert generation is not None
        until(lambda: generation.finished, "the cancel")
        assert {i.finish_reason for i in generation.images} == {FinishReason.CANCELLED}
        assert idle(api.app_state)


def test_several_readers_receive_the_same_images(
    stepwise: tuple[LiveServer, StepwiseDecoder],
) -> None:
    api, decoder = stepwise
    body = {"n": 3, "seed": 5, "stream": True}
    with (
        ThreadPoolExecutor(2) as pool,
        api.client.stream("POST", "/v1/samples", json=body) as first,
    ):
        identifier = first.headers["x-generation-id"]
        generation = api.app_state.models["fake"].engine.queue.find(identifier)
        assert generation is not None
        url = f"/v1/generations/{identifier}/events"
        others = [pool.submit(api.client.get, url, params={"granularity": g})
                  for g in ("row", "pixel")]  # fmt: skip
        until(lambda: generation.readers == 3)
        decoder.permit(11)
        decoder.opened.set()
        for content in (first.read(), *(other.result().content for other in others)):
            assert len(check_stream(parse_sse(content), GREY)) == 3
