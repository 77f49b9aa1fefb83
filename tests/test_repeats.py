"""Work without a reader, requests that come again, and samples at an address of their own."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest

from scanline.model.noise import MAX_SEED
from scanline.service.generation import FinishReason, Generation, Spec
from scanline.service.queue import Limits, Queue
from scanline.service.repeats import Repeats
from scanline.service.server import Scanline
from tests.clocks import Clock
from tests.service_fixtures import (
    GREY,
    FakeDecoder,
    build,
    check_error,
    decode_png,
    encode,
    fake_image,
    held_server,
    listening,
    parse_sse,
    random_picture,
    until,
)

ASYNC = {"Prefer": "respond-async"}


@pytest.fixture
def held() -> Iterator[tuple[Scanline, httpx.Client, threading.Event]]:
    """Give a server whose decoder draws nothing until it is let go, with no grace at all."""
    with held_server(2, {"grace_seconds": 0.0, "max_waiting": 8, "max_images": 8}) as held:
        yield held


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    scanline, app = build()
    with (
        listening(app, lambda: scanline.ready) as url,
        httpx.Client(base_url=url, timeout=60) as opened,
    ):
        yield opened


def drawn(client: httpx.Client, where: str) -> dict[str, Any]:
    until(lambda: client.get(where).json()["status"] == "finished", "the end")
    reply: dict[str, Any] = client.get(where).json()
    return reply


# --- in the background --------------------------------------------------------------------------


@pytest.mark.parametrize("route", ["samples", "completions"])
def test_work_goes_on_though_nobody_reads_it(
    held: tuple[Scanline, httpx.Client, threading.Event], route: str
) -> None:
    scanline, client, go_on = held
    headers = {"Prefer": "wait=5, Respond-Async; q=1"}
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
    # A reader that comes and goes does not take it along, though there is no grace.
    with client.stream("GET", f"{where}/events") as events:
        next(events.iter_raw())
    generation = scanline.models["grey"].engine.queue.find(reply.json()["id"])
    assert generation is not None
    until(lambda: generation.readers == 0)
    go_on.set()
    images = drawn(client, where)["images"]
    for image in images:
        assert image["finish_reason"] == "length"
    plain = client.post("/v1/samples", json={"n": 3, "seed": 4}).json()
    assert [image["png"] for image in images] == [image["png"] for image in plain["images"]]


def test_a_repeat_may_leave_it_to_the_background(
    held: tuple[Scanline, httpx.Client, threading.Event],
) -> None:
    """What was begun by one who waited goes on without a reader, though there is no grace."""
    scanline, client, go_on = held
    body, key = {"n": 2, "seed": 4}, {"Idempotency-Key": "later"}
    streamed = body | {"stream": True}
    with client.stream("POST", "/v1/samples", json=streamed, headers=key) as events:
        next(events.iter_raw())
        reply = client.post("/v1/samples", json=body, headers=key | ASYNC)
        assert reply.status_code == 202
    generation = scanline.models["grey"].engine.queue.find(reply.json()["id"])
    assert generation is not None
    until(lambda: generation.readers == 0)
    go_on.set()
    images = drawn(client, reply.headers["location"])["images"]
    assert [image["finish_reason"] for image in images] == ["length", "length"]


def test_those_who_leave_are_called_back_no_more(
    held: tuple[Scanline, httpx.Client, threading.Event],
) -> None:
    scanline, client, go_on = held
    body, key = {"n": 1, "seed": 4}, {"Idempotency-Key": "again"}
    begun = client.post("/v1/samples", json=body, headers=key | ASYNC)
    generation = scanline.models["grey"].engine.queue.find(begun.json()["id"])
    assert generation is not None
    for _ in range(3):
        with pytest.raises(httpx.ReadTimeout):
            client.post("/v1/samples", json=body, headers=key, timeout=0.2)
    until(lambda: not generation._enders, "nobody waits")
    go_on.set()
    assert drawn(client, begun.headers["location"])["images"][0]["finish_reason"] == "length"


def test_work_in_the_background_is_bounded_and_can_be_cancelled(
    held: tuple[Scanline, httpx.Client, threading.Event],
) -> None:
    scanline, client, go_on = held
    first = client.post("/v1/samples", json={"n": 2}, headers=ASYNC)
    until(lambda: scanline.models["grey"].engine.slots_in_use == 2)
    second = client.post("/v1/samples", json={"n": 8}, headers=ASYNC)
    assert second.status_code == 202
    full = client.post("/v1/samples", json={"n": 1}, headers=ASYNC)
    check_error(full, 429, "queue_full")
    assert int(full.headers["retry-after"]) >= 1
    queue = scanline.models["grey"].engine.queue
    generations = [queue.find(reply.json()["id"]) for reply in (first, second)]
    with ThreadPoolExecutor(2) as pool:
        ends = [pool.submit(client.delete, r.headers["location"]) for r in (first, second)]
        until(lambda: all(g is not None and g.cancelled for g in generations))
        go_on.set()
        for end in ends:
            assert {i["finish_reason"] for i in end.result().json()["images"]} == {"cancelled"}


def test_a_stream_is_a_stream_whatever_is_preferred(client: httpx.Client) -> None:
    reply = client.post("/v1/samples", json={"stream": True}, headers=ASYNC)
    assert reply.status_code == 200
    assert "preference-applied" not in reply.headers
    assert parse_sse(reply.content)[-1].name == "completed"


# --- the same request again ---------------------------------------------------------------------


def test_a_request_that_comes_again_is_drawn_once(client: httpx.Client) -> None:
    key = {"Idempotency-Key": "one"}
    first, second = (client.post("/v1/samples", json={"n": 2}, headers=key) for _ in range(2))
    assert first.json() == second.json()  # its seed, too, which was chosen at random
    new = client.post("/v1/samples", json={"n": 2}, headers={"Idempotency-Key": "two"})
    assert new.json()["id"] != first.json()["id"]
    # Its form may be another one.
    stream = client.post("/v1/samples", json={"n": 2, "stream": True}, headers=key)
    assert parse_sse(stream.content)[0].data["id"] == first.json()["id"]
    for body in (
        {"n": 3},
        {"n": 2, "seed": 5},
        {"n": 2, "label": "one"},
        {"n": 2, "model": "colour"},
    ):
        reply = client.post("/v1/samples", json=body, headers=key)
        message = check_error(reply, 422, "idempotency_key_reused", "idempotency-key")
        assert "choose a new key" in message
    check_error(client.post("/v1/samples", json={}, headers={"Idempotency-Key": "x" * 256}), 400)


def test_an_upload_that_comes_again_is_drawn_once(client: httpx.Client) -> None:
    def send(picture: bytes) -> httpx.Response:
        fields, files = {"known_rows": "2"}, {"image": picture}
        key = {"Idempotency-Key": "upload"}
        return client.post("/v1/completions", data=fields, files=files, headers=key)

    first, second = send(encode(random_picture())), send(encode(random_picture(), "BMP"))
    assert first.json() == second.json()  # another file, and the same picture
    check_error(send(encode(random_picture(seed=1))), 422, "idempotency_key_reused")


def test_a_request_in_openais_words_that_comes_again_is_drawn_once(client: httpx.Client) -> None:
    key = {"Idempotency-Key": "openai"}
    first, second = (
        client.post("/v1/images/generations", json={"prompt": "", "n": 2}, headers=key)
        for _ in range(2)
    )
    assert first.status_code == 200
    assert first.headers["x-generation-id"] == second.headers["x-generation-id"]
    assert first.json()["data"] == second.json()["data"]  # of a seed chosen at random
    other = client.post("/v1/images/generations", json={"prompt": "", "n": 1}, headers=key)
    check_error(other, 422, "idempotency_key_reused")

    def edit(picture: bytes) -> httpx.Response:
        files = {"image": ("a.png", picture, "image/png")}
        key = {"Idempotency-Key": "edit"}
        return client.post("/v1/images/edits", data={"prompt": ""}, files=files, headers=key)

    erased = random_picture().convert("RGBA")
    erased.putalpha(0)
    ids = {edit(encode(erased)).headers["x-generation-id"] for _ in range(2)}
    assert len(ids) == 1


def test_a_client_that_was_cut_off_finds_its_request_again() -> None:
    decoder, go_on = FakeDecoder(GREY, 2), threading.Event()
    decoder.before_step = lambda slots: (go_on.wait(), None)[1]
    scanline, app = build(decoders={"grey": decoder})
    key = {"Idempotency-Key": "mine"}
    with listening(app, lambda: scanline.ready) as url, httpx.Client(base_url=url) as client:
        with pytest.raises(httpx.ReadTimeout):
            client.post("/v1/samples", json={}, headers=key, timeout=0.3)
        queue = scanline.models["grey"].engine.queue
        until(lambda: scanline.models["grey"].engine.running == 1)
        with ThreadPoolExecutor(2) as pool:
            replies = [
                pool.submit(client.post, "/v1/samples", json={}, headers=key, timeout=60)
                for _ in range(2)
            ]
            until(lambda: [g.readers for g in tuple(queue._live.values())] == [2])
            go_on.set()
            bodies = [reply.result().json() for reply in replies]
    assert bodies[0] == bodies[1]
    assert bodies[0]["images"][0]["finish_reason"] == "length"
    assert len([n for slots, n in decoder.steps if len(slots) > 1]) == 0


def test_a_key_is_known_for_as_long_as_its_generation_is_kept() -> None:
    queue, repeats = Queue("it", GREY, Limits(keep_finished=3), Clock()), Repeats()
    spec = Spec(n=1, seed=0)

    def submit(key: str) -> str:
        return repeats.begin(("", key), b"", lambda: (queue, queue.submit(spec))).id

    def find(identifier: str) -> Generation:
        generation = queue.find(identifier)
        assert generation is not None
        return generation

    first = [submit(f"{j}") for j in range(5)]
    assert [submit(f"{j}") for j in range(5)] == first
    for identifier in first[:4]:
        queue.withdraw(find(identifier))
        queue.finish(find(identifier))
    gc.collect()
    assert len(repeats._begun) == 4
    assert submit("0") != first[0]  # the oldest of four that were finished
    queue.cancel(find(first[1]))  # which changes nothing
    assert submit("1") == first[1]
    queue.cancel(find(first[4]))
    assert submit("4") != first[4]  # what went wrong is begun anew


@pytest.mark.parametrize("drained", [False, True])
def test_what_was_begun_is_given_again_though_nothing_new_is_taken(drained: bool) -> None:
    """A repeat draws nothing anew: neither a full queue nor a server's end is in its way."""
    decoder, go_on = FakeDecoder(GREY, 2), threading.Event()
    decoder.before_step = lambda slots: (go_on.wait(), None)[1]
    scanline, app = build({"max_waiting": 8, "max_images": 8}, {"grey": decoder})
    refused = (503, "closing") if drained else (429, "queue_full")
    body, picture = {"n": 2, "seed": 4}, {"image": encode(random_picture())}

    with (
        listening(app, lambda: scanline.ready) as url,
        httpx.Client(base_url=url, timeout=60) as client,
        ThreadPoolExecutor(2) as pool,
    ):

        def drawing(name: str) -> httpx.Response:
            headers = {"Idempotency-Key": name} | ASYNC
            return client.post("/v1/samples", json=body, headers=headers)

        def completing(name: str) -> httpx.Response:
            fields, headers = {"n": "2", "known_rows": "1"}, {"Idempotency-Key": name} | ASYNC
            return client.post("/v1/completions", files=picture, data=fields, headers=headers)

        queue = scanline.models["grey"].engine.queue
        begun = drawing("draw").json()["id"], completing("complete").json()["id"]
        asked = [pool.submit(client.get, "/v1/samples/grey/9.png")]
        until(lambda: len(queue._live) == 3)
        if drained:
            queue.close(60)
        while not drained and client.post("/v1/samples", json={}, headers=ASYNC).is_success:
            pass
        check_error(drawing("new"), *refused)
        check_error(completing("new"), *refused)
        assert (drawing("draw").json()["id"], completing("complete").json()["id"]) == begun
        asked.append(pool.submit(client.get, "/v1/samples/grey/9.png"))
        until(lambda: 2 in [generation.readers for generation in tuple(queue._live.values())])
        go_on.set()
        first, second = (reply.result() for reply in asked)
    assert first.status_code == second.status_code == 200
    assert first.content == second.content


# --- at an address of its own -------------------------------------------------------------------


def test_a_sample_at_its_address_is_asked_for_again_by_its_tag(client: httpx.Client) -> None:
    address = "/v1/samples/grey/7.png?label=one&temperature=0.8&top_p=0.9&guidance=1.5"
    reply = client.get(address)
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "image/png"
    assert reply.headers["cache-control"] == "public, no-cache"
    body = {"seed": 7, "label": "one", "temperature": 0.8, "top_p": 0.9, "guidance": 1.5}
    posted = client.post("/v1/samples", json=body, headers={"Accept": "image/png"})
    assert reply.content == posted.content
    tag = reply.headers["etag"]
    for known in (tag, f'"other", W/{tag}', "*"):
        again = client.get(address, headers={"If-None-Match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert client.get(address, headers={"If-None-Match": '"x"'}).content == reply.content
    assert client.head(address).headers["etag"] == tag
    others = ["/v1/samples/grey/8.png", "/v1/samples/grey/7.png", "/v1/samples/colour/7.png",
              "/v1/samples/grey/7.png?label=one"]  # fmt: skip
    tags = {tag, *(client.get(other).headers["etag"] for other in others)}
    assert len(tags) == 5
    assert client.get(f"/v1/samples/grey/{MAX_SEED}.png").status_code == 200


@pytest.mark.parametrize(
    ("address", "status", "param"),
    [
        ("grey/-1.png", 400, "seed"),
        (f"grey/{MAX_SEED + 1}.png", 400, "seed"),
        ("grey/x.png", 400, "seed"),
        ("grey/7.jpg", 404, None),
        ("none/7.png", 404, "model"),
        ("grey/7.png?label=toad", 400, "label"),
        ("grey/7.png?temperature=3", 400, "temperature"),
        ("grey/7.png?guidance=2", 400, "guidance"),
        ("grey/7.png?n=2", 400, "n"),
    ],
)
def test_an_address_that_cannot_be_is_refused_and_not_kept(
    client: httpx.Client, address: str, status: int, param: str | None
) -> None:
    reply = client.get(f"/v1/samples/{address}")
    check_error(reply, status, param=param)
    assert "cache-control" not in reply.headers
    assert "etag" not in reply.headers


def test_many_who_ask_for_a_sample_at_once_have_it_drawn_once() -> None:
    decoder, go_on = FakeDecoder(GREY, 4), threading.Event()
    decoder.before_step = lambda slots: (go_on.wait(), None)[1]
    scanline, app = build(decoders={"grey": decoder})
    with listening(app, lambda: scanline.ready) as url, ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(httpx.get, f"{url}/v1/samples/grey/3.png") for _ in range(6)]
        queue = scanline.models["grey"].engine.queue
        until(lambda: [g.readers for g in tuple(queue._live.values())] == [6])
        go_on.set()
        pictures = {reply.result().content for reply in asked}
        assert {slot for slots, _ in decoder.steps for slot in slots} == {0}
    (picture,) = pictures
    expected = fake_image(GREY, Spec(n=1, seed=3), 0)
    assert np.array_equal(decode_png(picture, GREY), expected)


def test_a_cancelled_sample_is_no_picture(
    held: tuple[Scanline, httpx.Client, threading.Event],
) -> None:
    scanline, client, go_on = held
    queue = scanline.models["grey"].engine.queue
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(client.get, "/v1/samples/grey/3.png")
        until(lambda: queue._live)
        (generation,) = queue._live.values()
        until(lambda: generation.readers == 1)
        queue.cancel(generation)
        go_on.set()
        check_error(asked.result(), 503, "cancelled")
    assert generation.images[0].finish_reason is FinishReason.CANCELLED
    assert client.get("/v1/samples/grey/3.png").status_code == 200


def test_with_a_key_a_sample_is_for_its_owners_cache() -> None:
    scanline, app = build({"api_key": "a"})
    with listening(app, lambda: scanline.ready) as url:
        address = f"{url}/v1/samples/grey/3.png"
        check_error(httpx.get(address), 401)
        reply = httpx.get(address, headers={"Authorization": "Bearer a"})
        assert reply.headers["cache-control"].startswith("private, ")
