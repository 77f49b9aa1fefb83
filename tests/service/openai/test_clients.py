"""OpenAI's clients: retries, the async client, and the schema."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from scanline.service.state.app_state import AppState
from tests.service.fixtures import held_server, until
from tests.service.openai.fixtures import openai_client


def test_full_queue_is_429_and_the_client_retries() -> None:
    seen: list[int] = []

    def release(response: Any) -> None:
        seen.append(response.status_code)
        go_on.set()

    with held_server(1, {"max_waiting": 1, "max_images": 1}) as (app_state, other, go_on):
        url, engine = str(other.base_url), app_state.models["grey"].engine
        background = {"Prefer": "respond-async"}
        assert other.post("/v1/samples", json={}, headers=background).status_code == 202
        until(lambda: engine.slots_in_use == 1)
        assert other.post("/v1/samples", json={}, headers=background).status_code == 202
        assert engine.queue.waiting == 1
        with openai_client(url) as client, pytest.raises(openai.RateLimitError) as full:
            client.images.generate(prompt="")
        assert (full.value.code, full.value.type) == ("queue_full", "rate_limit_error")
        assert int(full.value.response.headers["retry-after"]) >= 1
        http = openai.DefaultHttpxClient(event_hooks={"response": [release]})
        with openai.OpenAI(base_url=f"{url}/v1", api_key="x", http_client=http) as client:
            assert client.images.generate(prompt="").data
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
