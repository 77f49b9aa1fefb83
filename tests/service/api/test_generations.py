"""``/v1/generations``: reading, cancelling, background requests."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.service.api.fixtures import LiveServer, StepwiseDecoder, stepwise_server, values
from tests.service.fixtures import GREY, check_error, idle, until
from tests.sse_client import parse_sse


def test_read_and_cancel_a_generation(
    stepwise: tuple[LiveServer, StepwiseDecoder],
) -> None:
    api, decoder = stepwise
    with api.client.stream("POST", "/v1/samples", json={"n": 6, "stream": True}) as stream:
        url = f"/v1/generations/{stream.headers['x-generation-id']}"
        decoder.permit(2)
        until(lambda: api.client.get(url).json()["images"][0]["position"] == 2)
        body = api.client.get(url).json()
        assert body["status"] == "running"
        assert [i["status"] for i in body["images"]] == ["running"] * 4 + ["waiting"] * 2
        assert {i["png"] for i in body["images"]} == {None}
        cancelled = api.client.delete(url)
        assert cancelled.status_code == 200
        assert {i["finish_reason"] for i in cancelled.json()["images"]} == {"cancelled"}
        events = parse_sse(stream.read())
        assert [e.data["finish_reason"] for e in events if e.name == "image"] == ["cancelled"] * 6
        assert (events[-1].name, events[-1].data["status"]) == ("completed", "cancelled")
    assert (cancelled.json()["status"], cancelled.json()["error"]) == ("cancelled", None)
    assert api.client.delete(url).json() == cancelled.json() == api.client.get(url).json()
    half = values(api.client.get(url, params={"output": "values"}).json()["images"][0], GREY)
    assert half[:2].any()
    assert not half[2:].any()
    for method in ("GET", "DELETE"):
        check_error(
            api.client.request(method, "/v1/generations/gen_no"), 404, "generation_not_found"
        )
    check_error(api.client.get("/v1/generations/gen_no/events"), 404, "generation_not_found")


def test_an_unexpected_body_is_ignored(
    stepwise: tuple[LiveServer, StepwiseDecoder],
) -> None:
    """The task that watches for disconnects receives it."""
    api, decoder = stepwise
    started = api.client.post("/v1/samples", json={}, headers={"Prefer": "respond-async"})
    address, body = started.headers["location"], b":" * 1500
    with api.client.stream("GET", f"{address}/events", content=body) as stream:
        decoder.permit(GREY.pixels)
        events = parse_sse(stream.read())
    assert events[-1].name == "completed"
    assert events[-1].data["warnings"] == []
    for method, path in (("DELETE", address), ("GET", address), ("GET", "/v1/samples/fake/3.png")):
        decoder.permit(GREY.pixels)
        assert api.client.request(method, path, content=body).status_code == 200
    check_error(api.client.post("/v1/samples", content=body), 400, "too_many")


def test_head_of_a_stream_does_not_read_it(stepwise: tuple[LiveServer, StepwiseDecoder]) -> None:
    api, _ = stepwise
    reply = api.client.post("/v1/samples", json={}, headers={"Prefer": "respond-async"})
    generation = api.app_state.models["fake"].engine.queue.find(reply.json()["id"])
    assert generation is not None
    head = api.client.head(f"/v1/generations/{generation.id}/events")
    assert head.headers["content-type"].startswith("text/event-stream")
    assert api.client.get("/livez").status_code == 200  # on the same connection
    assert generation.readers == 0
    assert not generation.finished


@pytest.mark.parametrize("media", ["application/x-npy", "image/png", "application/zip"])
def test_cancelled_generations_have_no_files(
    stepwise: tuple[LiveServer, StepwiseDecoder], media: str
) -> None:
    """A file does not show that its picture is incomplete."""
    api, decoder = stepwise
    body, key = {"n": 2, "seed": 3}, {"Idempotency-Key": "bulk"}
    begun = api.client.post("/v1/samples", json=body, headers=key | {"Prefer": "respond-async"})
    url = begun.headers["location"]
    generation = api.app_state.models["fake"].engine.queue.find(begun.json()["id"])
    assert generation is not None
    accept = {"Accept": media}
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(api.client.post, "/v1/samples", json=body, headers=key | accept)
        decoder.permit(2)
        until(lambda: generation.readers == 1)
        api.client.delete(url)
        for reply in (asking.result(), api.client.get(url, headers=accept)):
            assert url in check_error(reply, 409, "cancelled")
            assert "retry-after" not in reply.headers  # because it will never be complete


@pytest.mark.parametrize("media", ["application/x-npy", "image/png", "application/zip"])
def test_background_generations_have_files_once_finished(
    stepwise: tuple[LiveServer, StepwiseDecoder], media: str
) -> None:
    api, decoder = stepwise
    body, accept = {"n": 2, "seed": 3}, {"Accept": media}
    begun = api.client.post("/v1/samples", json=body, headers={"Prefer": "respond-async"})
    url = begun.headers["location"]
    waiting = api.client.get(url, headers=accept)
    assert "still being drawn" in check_error(waiting, 409, "not_finished")
    assert waiting.headers["retry-after"] == "1"
    check_error(api.client.get(url, headers={"Accept": "text/csv"}), 406, "not_acceptable")
    decoder.permit(GREY.pixels)
    until(lambda: api.client.get(url).json()["status"] == "finished", "the end")
    reply = api.client.get(url, headers=accept)
    assert (reply.status_code, reply.headers["content-type"]) == (200, media)
    assert reply.headers["x-seed"] == "3"
    # A cache must not serve it in another form, or keep the state of a running generation.
    assert (reply.headers["vary"], reply.headers["cache-control"]) == ("Accept", "no-store")
    decoder.permit(GREY.pixels)
    assert reply.content == api.client.post("/v1/samples", json=body, headers=accept).content
    check_error(api.client.get(f"{url}?output=values", headers=accept), 400, "unsupported")
    stream = {"Accept": "text/event-stream"}
    events = parse_sse(api.client.get(url, headers=stream).content)
    assert (events[-1].name, events[-1].data["status"]) == ("completed", "finished")
    rest = api.client.get(url, headers=stream | {"Last-Event-ID": str(events[-2].id)})
    assert [event.name for event in parse_sse(rest.content)] == ["completed"]
    over = api.client.get(url, headers=stream | {"Last-Event-ID": str(events[-1].id)})
    assert over.status_code == 204


def test_disconnecting_json_client_frees_its_slots_at_once() -> None:
    with stepwise_server(grace_seconds=3600) as (api, _):
        engine = api.app_state.models["fake"].engine

        async def leave() -> None:
            async with httpx.AsyncClient(base_url=api.url, timeout=60) as client:
                asking = asyncio.create_task(client.post("/v1/samples", json={"n": 9}))
                await asyncio.to_thread(until, lambda: engine.slots_in_use)
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)

        asyncio.run(leave())
        until(lambda: idle(api.app_state), "free slots")
        # No image was finished, because the decoder is still blocked.
        cancelled = 'scanline_images_total{finish_reason="cancelled",model="fake"} 9.0'
        assert cancelled in api.client.get("/metrics").text
