"""Background generations (``Prefer: respond-async``)."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from scanline.service.engine.generation import Generation
from scanline.service.state.app_state import AppState
from tests.service.engine.idempotency.fixtures import ASYNC, drawn
from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import (
    GREY,
    build,
    check_error,
    encode,
    random_picture,
    talking_to,
    until,
)
from tests.sse_client import parse_sse


@pytest.mark.parametrize("route", ["samples", "completions"])
def test_a_background_generation_continues_without_readers(
    held: tuple[AppState, httpx.Client, threading.Event], route: str
) -> None:
    app_state, client, go_on = held
    headers = [("Prefer", "wait=5"), ("Prefer", "handling=lenient, Respond-Async; q=1")]
    if route == "samples":
        reply = client.post("/v1/samples", json={"n": 3, "seed": 4}, headers=headers)
    else:
        fields = {"n": "3", "seed": "4", "known_rows": "0"}
        files = {"image": encode(random_picture())}
        reply = client.post("/v1/completions", files=files, data=fields, headers=headers)
    assert reply.status_code == 202
    assert reply.headers["preference-applied"] == "respond-async"
    where = reply.headers["location"]
    assert where == f"/v1/generations/{reply.json()['id']}"
    assert reply.json()["status"] in ("waiting", "running")
    assert {image["png"] for image in reply.json()["images"]} == {None}
    # A reader that attaches and leaves does not end it, even without grace time.
    with client.stream("GET", f"{where}/events") as events:
        next(events.iter_raw())
    generation = app_state.models["grey"].engine.queue.find(reply.json()["id"])
    assert generation is not None
    until(lambda: generation.readers == 0)
    go_on.set()
    images = drawn(client, where)["images"]
    for image in images:
        assert image["finish_reason"] == "length"
    plain = client.post("/v1/samples", json={"n": 3, "seed": 4}).json()
    assert [image["png"] for image in images] == [image["png"] for image in plain["images"]]


def test_a_repeated_request_can_detach_the_generation(
    held: tuple[AppState, httpx.Client, threading.Event],
) -> None:
    """A generation of a waiting client continues without readers, even without grace time."""
    app_state, client, go_on = held
    body, key = {"n": 2, "seed": 4}, {"Idempotency-Key": "later"}
    streamed = body | {"stream": True}
    with client.stream("POST", "/v1/samples", json=streamed, headers=key) as events:
        reading = events.iter_raw()  # keeps the reader attached
        next(reading)
        reply = client.post("/v1/samples", json=body, headers=key | ASYNC)
        assert reply.status_code == 202
        generation = app_state.models["grey"].engine.queue.find(reply.json()["id"])
        assert generation is not None
        assert generation.readers == 1
    until(lambda: generation.readers == 0)
    go_on.set()
    images = drawn(client, reply.headers["location"])["images"]
    assert [image["finish_reason"] for image in images] == ["length", "length"]


def test_callbacks_of_lost_clients_are_removed(
    held: tuple[AppState, httpx.Client, threading.Event],
) -> None:
    app_state, client, go_on = held
    body, key = {"n": 1, "seed": 4}, {"Idempotency-Key": "again"}
    begun = client.post("/v1/samples", json=body, headers=key | ASYNC)
    generation = app_state.models["grey"].engine.queue.find(begun.json()["id"])
    assert generation is not None
    for _ in range(3):
        with pytest.raises(httpx.ReadTimeout):
            client.post("/v1/samples", json=body, headers=key, timeout=0.2)
    until(lambda: not generation._done_callbacks, "no callbacks")
    go_on.set()
    assert drawn(client, begun.headers["location"])["images"][0]["finish_reason"] == "length"


def test_background_generations_are_bounded_and_can_be_cancelled(
    held: tuple[AppState, httpx.Client, threading.Event],
) -> None:
    app_state, client, go_on = held
    first = client.post("/v1/samples", json={"n": 2}, headers=ASYNC)
    until(lambda: app_state.models["grey"].engine.slots_in_use == 2)
    second = client.post("/v1/samples", json={"n": 8}, headers=ASYNC)
    assert second.status_code == 202
    full = client.post("/v1/samples", json={"n": 1}, headers=ASYNC)
    check_error(full, 429, "queue_full")
    assert int(full.headers["retry-after"]) >= 1
    queue = app_state.models["grey"].engine.queue
    generations = [queue.find(reply.json()["id"]) for reply in (first, second)]
    with ThreadPoolExecutor(2) as pool:
        ends = [pool.submit(client.delete, r.headers["location"]) for r in (first, second)]
        until(lambda: all(g is not None and g.cancelled for g in generations))
        go_on.set()
        for end in ends:
            assert {i["finish_reason"] for i in end.result().json()["images"]} == {"cancelled"}


def test_a_stream_ignores_the_preference(client: httpx.Client) -> None:
    reply = client.post("/v1/samples", json={"stream": True}, headers=ASYNC)
    assert reply.status_code == 200
    assert "preference-applied" not in reply.headers
    assert parse_sse(reply.content)[-1].name == "completed"


@pytest.mark.parametrize("setting", ["keep_finished", "keep_seconds"])
def test_without_a_result_cache_the_preference_is_ignored(setting: str) -> None:
    """Its result would be nowhere afterwards, so the reply is the result."""
    _, app = build({setting: 0}, {"fake": FakeDecoder(GREY, 2)})
    with talking_to(app) as client:
        reply = client.post("/v1/samples", json={"n": 2}, headers=ASYNC)
    assert reply.status_code == 200
    assert "preference-applied" not in reply.headers
    assert [image["finish_reason"] for image in reply.json()["images"]] == ["length"] * 2


def test_an_idle_connection_references_no_generation() -> None:
    """uvicorn keeps the last request of each connection, and its state, until the next one."""
    app_state, app = build({"keep_finished": 0}, {"fake": FakeDecoder(GREY, 2)})
    drawn: list[weakref.ref[Generation]] = []
    with talking_to(app) as client:
        queue = app_state.models["fake"].engine.queue
        finish = queue.finish

        def note(generation: Generation) -> None:
            drawn.append(weakref.ref(generation))
            finish(generation)

        queue.finish = note  # type: ignore[method-assign]
        assert client.post("/v1/samples", json={"n": 2}).status_code == 200
        assert client.post("/v1/samples", json={"stream": True}).status_code == 200
        until(lambda: gc.collect() >= 0 and [ref() for ref in drawn] == [None, None])
