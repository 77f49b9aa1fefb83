"""Generations: looked at, cancelled, left alone."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from scanline.service.workshop import Workshop
from tests.api.fixtures import Held, Here, held, values
from tests.events import parse_sse
from tests.service_fixtures import GREY, check_error, idle, until


def test_looking_at_and_cancelling_a_generation(holding: tuple[Here, Held]) -> None:
    here, decoder = holding
    with here.client.stream("POST", "/v1/samples", json={"n": 6, "stream": True}) as stream:
        url = f"/v1/generations/{stream.headers['x-generation-id']}"
        decoder.let(2)
        until(lambda: here.client.get(url).json()["images"][0]["position"] == 2)
        body = here.client.get(url).json()
        assert body["status"] == "running"
        assert [i["status"] for i in body["images"]] == ["running"] * 4 + ["waiting"] * 2
        assert {i["png"] for i in body["images"]} == {None}
        cancelled = here.client.delete(url)
        assert cancelled.status_code == 200
        assert {i["finish_reason"] for i in cancelled.json()["images"]} == {"cancelled"}
        events = parse_sse(stream.read())
        assert [e.data["finish_reason"] for e in events if e.name == "image"] == ["cancelled"] * 6
        assert events[-1].name == "completed"
    assert here.client.delete(url).json() == cancelled.json() == here.client.get(url).json()
    half = values(here.client.get(url, params={"output": "values"}).json()["images"][0], GREY)
    assert half[:2].any()
    assert not half[2:].any()
    for method in ("GET", "DELETE"):
        check_error(
            here.client.request(method, "/v1/generations/gen_no"), 404, "generation_not_found"
        )
    check_error(here.client.get("/v1/generations/gen_no/events"), 404, "generation_not_found")


def test_a_body_where_none_is_read_means_nothing(holding: tuple[Here, Held]) -> None:
    """Whoever watches for the client's leaving sees it, and takes it for neither that nor a bug."""
    here, decoder = holding
    started = here.client.post("/v1/samples", json={}, headers={"Prefer": "respond-async"})
    address, body = started.headers["location"], b":" * 1500
    with here.client.stream("GET", f"{address}/events", content=body) as stream:
        decoder.let(GREY.pixels)
        events = parse_sse(stream.read())
    assert events[-1].name == "completed"
    assert events[-1].data["warnings"] == []
    for method, path in (("DELETE", address), ("GET", address), ("GET", "/v1/samples/fake/3.png")):
        decoder.let(GREY.pixels)
        assert here.client.request(method, path, content=body).status_code == 200
    assert here.client.post("/v1/samples", content=body).status_code == 400


def test_head_of_a_stream_is_its_head_alone(holding: tuple[Here, Held]) -> None:
    here, _ = holding
    reply = here.client.post("/v1/samples", json={}, headers={"Prefer": "respond-async"})
    generation = here.scanline.models["fake"].engine.queue.find(reply.json()["id"])
    assert generation is not None
    head = here.client.head(f"/v1/generations/{generation.id}/events")
    assert head.headers["content-type"].startswith("text/event-stream")
    assert here.client.get("/livez").status_code == 200  # on the same connection
    assert generation.readers == 0
    assert not generation.finished


@pytest.mark.parametrize("media", ["application/x-npy", "image/png", "application/zip"])
def test_files_of_a_cancelled_drawing_are_refused(holding: tuple[Here, Held], media: str) -> None:
    """A picture cut off would look like any other there."""
    here, decoder = holding
    body, key = {"n": 2, "seed": 3}, {"Idempotency-Key": "bulk"}
    begun = here.client.post("/v1/samples", json=body, headers=key | {"Prefer": "respond-async"})
    url = begun.headers["location"]
    generation = here.scanline.models["fake"].engine.queue.find(begun.json()["id"])
    assert generation is not None
    accept = {"Accept": media}
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(here.client.post, "/v1/samples", json=body, headers=key | accept)
        decoder.let(2)
        until(lambda: generation.readers == 1)
        here.client.delete(url)
        check_error(asking.result(), 503, "cancelled")
    gone = here.client.get(url, headers=accept)
    check_error(gone, 409, "cancelled")
    assert "retry-after" not in gone.headers  # it never can be


@pytest.mark.parametrize("media", ["application/x-npy", "image/png", "application/zip"])
def test_a_background_drawing_comes_as_a_file_once_it_is_finished(
    holding: tuple[Here, Held], media: str
) -> None:
    here, decoder = holding
    body, accept = {"n": 2, "seed": 3}, {"Accept": media}
    begun = here.client.post("/v1/samples", json=body, headers={"Prefer": "respond-async"})
    url = begun.headers["location"]
    waiting = here.client.get(url, headers=accept)
    assert "still being drawn" in check_error(waiting, 409, "not_finished")
    assert waiting.headers["retry-after"] == "1"
    check_error(here.client.get(url, headers={"Accept": "text/csv"}), 406, "not_acceptable")
    decoder.let(GREY.pixels)
    until(lambda: here.client.get(url).json()["status"] == "finished", "the end")
    reply = here.client.get(url, headers=accept)
    assert (reply.status_code, reply.headers["content-type"]) == (200, media)
    assert reply.headers["x-seed"] == "3"
    # No cache may give it to who asks for another form, nor what is running by now for ever.
    assert (reply.headers["vary"], reply.headers["cache-control"]) == ("Accept", "no-store")
    decoder.let(GREY.pixels)
    assert reply.content == here.client.post("/v1/samples", json=body, headers=accept).content
    check_error(here.client.get(f"{url}?output=values", headers=accept), 400, "unsupported")
    events = here.client.get(url, headers={"Accept": "text/event-stream"}).text
    assert "event: completed" in events


def test_a_json_client_that_leaves_frees_its_slots_whatever_the_grace() -> None:
    for here, _ in held(grace_seconds=3600):
        engine = here.scanline.models["fake"].engine

        async def leave(url: str = here.url, engine: Workshop = engine) -> None:
            async with httpx.AsyncClient(base_url=url, timeout=60) as client:
                asking = asyncio.create_task(client.post("/v1/samples", json={"n": 9}))
                await asyncio.to_thread(until, lambda: engine.slots_in_use)
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)

        asyncio.run(leave())
        until(lambda s=here.scanline: idle(s), "free slots")  # type: ignore[misc]
        # None was drawn to its end: the decoder is still held.
        cancelled = 'scanline_images_total{finish_reason="cancelled",model="fake"} 9.0'
        assert cancelled in here.client.get("/metrics").text
