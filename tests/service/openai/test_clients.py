"""OpenAI's clients: retries, the async client, and the schema."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import httpx
import openai
import pytest

from scanline.service.state.app_state import AppState
from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import (
    DEADLINE,
    GREY,
    build,
    listening,
    until,
)
from tests.service.openai.fixtures import openai_client


def test_full_queue_is_429_and_the_client_retries() -> None:
    decoder, hold = FakeDecoder(GREY, 1), threading.Event()
    decoder.before_step = lambda slots: (hold.wait(), None)[1]
    app_state, app = build({"max_waiting": 1, "max_images": 1}, {"grey": decoder})
    seen: list[int] = []

    def release(response: Any) -> None:
        seen.append(response.status_code)
        hold.set()

    with listening(app, lambda: app_state.ready) as url:
        others = [
            threading.Thread(
                target=httpx.post,
                args=(f"{url}/v1/samples",),
                kwargs={"json": {}, "timeout": DEADLINE},
            )
            for _ in range(2)
        ]
        others[0].start()
        until(lambda: app_state.models["grey"].engine.slots_in_use == 1)
        others[1].start()
        until(lambda: app_state.models["grey"].engine.queue.waiting == 1)
        with openai_client(url) as client, pytest.raises(openai.RateLimitError) as full:
            client.images.generate(prompt="")
        assert (full.value.code, full.value.type) == ("queue_full", "rate_limit_error")
        assert int(full.value.response.headers["retry-after"]) >= 1
        http = openai.DefaultHttpxClient(event_hooks={"response": [release]})
        with openai.OpenAI(base_url=f"{url}/v1", api_key="x", http_client=http) as client:
            assert client.images.generate(prompt="").data
        for other in others:
            other.join()
    assert seen == [429, 200]


async def _stream_async(url: str) -> list[str]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x") as client:
        stream = await client.images.generate(prompt="", stream=True, partial_images=1)
        return [event.type async for event in stream]


def test_async_client(server: tuple[AppState, str]) -> None:
    assert asyncio.run(_stream_async(server[1])) == [
        "image_generation.partial_image",
        "image_generation.completed",
    ]


def test_schema_describes_both_bodies_of_an_edit(http: httpx.Client) -> None:
    schema = http.get("/openapi.json").json()
    content = schema["paths"]["/v1/images/edits"]["post"]["requestBody"]["content"]
    assert set(content) == {"multipart/form-data", "application/json"}
    assert "image" in content["multipart/form-data"]["schema"]["required"]
    assert json.dumps(content).count("$ref") == 0
