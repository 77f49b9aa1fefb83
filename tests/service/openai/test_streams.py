"""Streams of partial images with OpenAI's client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from scanline.model.sampling import SamplingParams
from scanline.service.engine.generation import Generation, GenerationSpec
from scanline.service.engine.image import CanvasView, FinishReason
from scanline.service.http.disconnect import WaitingClient
from scanline.service.http.sse import KEEP_ALIVE_COMMENT, stream_response
from scanline.service.http.thread_pool import FairThreadPool
from scanline.service.openai.events import stream_images
from scanline.service.openai.rendering import choose_rendering
from scanline.service.openai.requests import GenerationsRequest
from scanline.service.state.app_state import AppState
from tests.service.fake_decoders import FakeDecoder, fake_image
from tests.service.fixtures import (
    GREY,
    build,
    check_error,
    encode,
    held_server,
    listening,
    random_picture,
    until,
)
from tests.service.openai.fixtures import expected_edit, masked, openai_client, pixels_of
from tests.sse_client import Event, parse_sse


def test_stream_sends_partial_images_and_then_the_image(client: openai.OpenAI) -> None:
    stream = client.images.generate(
        prompt="one", n=2, stream=True, partial_images=2, extra_body={"seed": 3}
    )
    events = list(stream)
    spec = GenerationSpec(n=2, seed=3, sampling=SamplingParams(label=1))
    for j in range(2):
        mine = [event for event in events if (event.model_extra or {})["index"] == j]
        assert [event.type for event in mine] == [
            "image_generation.partial_image",
            "image_generation.partial_image",
            "image_generation.completed",
        ]
        expected = fake_image(GREY, spec, j)
        for k, event in enumerate(mine):
            assert (event.model_extra or {})["seed"] == 3 + j
            decided = 10 * (k + 1)
            drawn = pixels_of(event.b64_json)
            assert np.array_equal(drawn[:decided], expected[:decided])
            assert not drawn[decided:].any()
            if event.type == "image_generation.partial_image":
                assert event.partial_image_index == k
            else:
                assert event.usage.output_tokens == 30


def test_streamed_edit_keeps_the_known_pixels(client: openai.OpenAI) -> None:
    picture, paint = random_picture(), np.zeros((6, 5), bool)
    paint[2:4] = True
    stream = client.images.edit(
        image=encode(picture), mask=masked(picture, paint), prompt="", stream=True,
        partial_images=1, extra_body={"seed": 9},
    )  # fmt: skip
    partial, completed = list(stream)
    assert partial.type == "image_edit.partial_image"
    assert completed.type == "image_edit.completed"
    spec = expected_edit(picture, paint)
    for event in (partial, completed):  # the partial image contains the whole hole
        assert np.array_equal(pixels_of(event.b64_json), fake_image(GREY, spec, 0))


def test_keep_alive_comments_are_invisible_to_the_client(
    held: tuple[AppState, httpx.Client, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scanline.service.openai.events.KEEP_ALIVE_SECONDS", 0.05)
    _, server, go_on = held
    sent = stream_response

    def counted(*arguments: Any, **named: Any) -> Any:
        request, events, *rest = arguments

        async def noted(client: WaitingClient) -> AsyncIterator[bytes]:
            comments = 0
            async for event in events(client):
                comments += event == KEEP_ALIVE_COMMENT
                if comments == 3:
                    go_on.set()
                yield event

        return sent(request, noted, *rest, **named)

    monkeypatch.setattr("scanline.service.openai.routes.stream_response", counted)
    with openai_client(str(server.base_url)) as client:
        stream = client.images.generate(prompt="", stream=True, partial_images=1)
        types = [event.type.split(".")[1] for event in stream]
    assert types == ["partial_image", "completed"]
    assert go_on.is_set()  # after three comments


def test_changes_while_an_event_is_sent_are_not_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scanline.service.openai.events.KEEP_ALIVE_SECONDS", 0.2)
    generation = Generation("fake", GREY, GenerationSpec(n=2, seed=0))
    published = np.array([[0], [GREY.pixels // 2]], np.int32)
    for image, position in zip(generation.images, published, strict=True):
        image.start(CanvasView(np.zeros((GREY.pixels, 1), np.uint8), position))

    async def read() -> list[Event]:
        gone = asyncio.create_task(asyncio.sleep(60))
        rendering = choose_rendering(GenerationsRequest(prompt=""), GREY)
        stream = stream_images(
            generation,
            WaitingClient("", gone),
            "image_generation",
            rendering,
            1,
            FairThreadPool(1),
        )
        raw = await anext(stream)
        published[0] = GREY.pixels // 2  # while the event is being sent; no change follows
        generation.notify()
        raw += await anext(stream)
        gone.cancel()
        return parse_sse(raw)

    assert [event.data["index"] for event in asyncio.run(read())] == [1, 0]


def test_stream_has_no_ids_and_no_comments(http: httpx.Client) -> None:
    body = {"prompt": "", "stream": True, "n": 3}
    reply = http.post("/v1/images/generations", json=body)
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert b"\n:" not in b"\n" + reply.content
    events = parse_sse(reply.content)
    assert [event.name for event in events] == ["image_generation.completed"] * 3
    assert all(event.id is None and event.data["type"] == event.name for event in events)


def test_disconnect_cancels_a_stream_at_once() -> None:
    with (
        held_server(2, {"grace_seconds": 3600}) as (app_state, server, go_on),
        openai_client(str(server.base_url)) as client,
    ):
        stream = client.images.generate(prompt="", n=3, stream=True, partial_images=3)
        identifier = stream.response.headers["x-generation-id"]
        generation = app_state.models["grey"].engine.queue.find(identifier)
        assert generation is not None
        until(lambda: generation.readers == 1)
        stream.close()
        until(lambda: generation.readers == 0, "the disconnect")
        go_on.set()
        until(lambda: generation.finished)
        assert {image.finish_reason for image in generation.images} == {FinishReason.CANCELLED}


def test_a_cancelled_stream_ends_with_an_error(
    held: tuple[AppState, httpx.Client, threading.Event],
) -> None:
    """Otherwise it would look like an empty stream."""
    app_state, server, go_on = held
    queue = app_state.models["grey"].engine.queue
    with openai_client(str(server.base_url)) as client:
        events = list[object]()
        stream = client.images.generate(prompt="", n=3, stream=True)
        generation = queue.find(stream.response.headers["x-generation-id"])
        assert generation is not None
        queue.cancel(generation)
        go_on.set()
        with pytest.raises(
            openai.APIError, match="the generation was cancelled; send the request again"
        ):
            events.extend(stream)
    assert events == []  # no image is complete


def test_cancelled_generation_is_an_error(
    held: tuple[AppState, httpx.Client, threading.Event],
) -> None:
    """Incomplete images would look like complete ones."""
    app_state, server, go_on = held
    queue = app_state.models["grey"].engine.queue
    with ThreadPoolExecutor(1) as pool:
        body = {"prompt": "", "n": 3}
        reply = pool.submit(server.post, "/v1/images/generations", json=body)
        until(lambda: queue.waiting == 1)
        (generation,) = queue._live.values()
        queue.cancel(generation)
        go_on.set()
        check_error(reply.result(), 409, "cancelled")


def test_client_raises_errors_of_a_stream(server: tuple[AppState, str]) -> None:
    decoder = FakeDecoder(GREY, 2)

    def fail(slots: list[int]) -> None:
        raise RuntimeError("broken")

    decoder.before_step = fail
    app_state, app = build(decoders={"grey": decoder})
    with listening(app, lambda: app_state.ready) as url, openai_client(url) as client:
        with pytest.raises(openai.APIError, match="drawing failed"):
            list(client.images.generate(prompt="", stream=True))
        with pytest.raises(openai.InternalServerError, match="drawing failed"):
            client.images.generate(prompt="")
