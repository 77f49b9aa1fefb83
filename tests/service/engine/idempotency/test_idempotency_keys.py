"""Requests with the same ``Idempotency-Key`` are drawn once."""

from __future__ import annotations

import gc
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest

from scanline.model.sampling import SamplingParams
from scanline.service.engine.generation import Generation, GenerationSpec
from scanline.service.engine.idempotency import IdempotencyStore, RequestKey, fingerprint
from scanline.service.engine.image import FinishReason
from scanline.service.engine.queue import Queue, QueuedGeneration
from scanline.service.engine.queue_limits import QueueLimits
from tests.fake_clock import Clock
from tests.service.engine.fixtures import Gate
from tests.service.engine.idempotency.fixtures import ASYNC
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


def test_a_repeated_request_is_drawn_once(client: httpx.Client) -> None:
    key = {"Idempotency-Key": "one"}
    first, second = (client.post("/v1/samples", json={"n": 2}, headers=key) for _ in range(2))
    assert first.json() == second.json()  # including the random seed
    new = client.post("/v1/samples", json={"n": 2}, headers={"Idempotency-Key": "two"})
    assert new.json()["id"] != first.json()["id"]
    # The reply may have another format.
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
    twice = client.post(
        "/v1/samples", json={}, headers=[("Idempotency-Key", name) for name in "ab"]
    )
    check_error(twice, 400, "too_many", "idempotency-key")


def test_a_repeated_upload_is_drawn_once(client: httpx.Client) -> None:
    def send(picture: bytes) -> httpx.Response:
        fields, files = {"known_rows": "2"}, {"image": picture}
        key = {"Idempotency-Key": "upload"}
        return client.post("/v1/completions", data=fields, files=files, headers=key)

    first, second = send(encode(random_picture())), send(encode(random_picture(), "BMP"))
    assert first.json() == second.json()  # a different file with the same pixels
    check_error(send(encode(random_picture(seed=1))), 422, "idempotency_key_reused")


def test_a_repeated_openai_request_is_drawn_once(client: httpx.Client) -> None:
    key = {"Idempotency-Key": "openai"}
    first, second = (
        client.post("/v1/images/generations", json={"prompt": "", "n": 2}, headers=key)
        for _ in range(2)
    )
    assert first.status_code == 200
    assert first.headers["x-generation-id"] == second.headers["x-generation-id"]
    assert first.json()["data"] == second.json()["data"]  # although the seed is random
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


@pytest.mark.parametrize("path", ["/v1/samples", "/v1/images/generations"])
def test_a_disconnected_client_gets_its_generation_again(path: str) -> None:
    decoder = FakeDecoder(GREY, 2)
    gate = Gate(decoder)
    app_state, app = build({"grace_seconds": 600.0}, {"grey": decoder})
    body = b"{}" if path == "/v1/samples" else b'{"prompt":""}'
    headers = {"Idempotency-Key": "mine", "Content-Type": "application/json"}
    with talking_to(app) as client:
        queue = app_state.models["grey"].engine.queue
        server = client.base_url
        with socket.create_connection((server.host, server.port or 80)) as cut_off:
            cut_off.sendall(
                b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Idempotency-Key: mine\r\nContent-Length: %d\r\n\r\n%b"
                % (path.encode(), len(body), body)
            )
            until(lambda: [g.readers for g in tuple(queue._live.values())] == [1])
            gate.wait()
        (begun,) = queue._live.values()
        until(lambda: begun.readers == 0, "the server to notice the disconnect")
        gate.let(1)
        # The engine has checked for lost readers.
        until(lambda: gate.arrivals == 2 or begun.finished)
        with ThreadPoolExecutor(2) as pool:
            replies = [
                pool.submit(client.post, path, content=body, headers=headers, timeout=60)
                for _ in range(2)
            ]
            until(lambda: [g.readers for g in tuple(queue._live.values())] == [2])
            gate.open()
            ids = [reply.result().headers["x-generation-id"] for reply in replies]
    assert ids == [begun.id] * 2
    assert begun.images[0].finish_reason is FinishReason.LENGTH
    assert len([n for slots, n in decoder.steps if len(slots) > 1]) == 0


def store_for(queue: Queue) -> IdempotencyStore:
    """Create a store for the generations of one queue."""

    def find(identifier: str) -> QueuedGeneration | None:
        generation = queue.find(identifier)
        return None if generation is None else QueuedGeneration(queue, generation)

    return IdempotencyStore(find)


def test_a_key_lives_as_long_as_its_generation() -> None:
    queue = Queue("it", GREY, QueueLimits(keep_finished=3), Clock())
    store = store_for(queue)
    spec = GenerationSpec(n=1, seed=0)

    def submit(key: str) -> str:
        return store.get_or_submit(
            RequestKey("", key, b""), lambda: QueuedGeneration(queue, queue.submit(spec))
        ).generation.id

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
    assert len(store._generations) == 4
    assert submit("0") != first[0]  # the oldest of four finished generations was evicted
    queue.cancel(find(first[1]))  # has no effect
    assert submit("1") == first[1]
    queue.cancel(find(first[4]))
    assert submit("4") != first[4]  # a failed one is submitted again


@pytest.mark.parametrize("drained", [False, True])
def test_a_repeated_request_succeeds_though_new_ones_are_refused(drained: bool) -> None:
    """A repeated request needs no capacity, so a full or closed queue does not refuse it."""
    decoder, go_on = FakeDecoder(GREY, 2), threading.Event()
    decoder.before_step = lambda slots: (go_on.wait(), None)[1]
    app_state, app = build({"max_waiting": 8, "max_images": 8}, {"grey": decoder})
    refused = (503, "closing") if drained else (429, "queue_full")
    body, picture = {"n": 2, "seed": 4}, {"image": encode(random_picture())}

    with talking_to(app) as client, ThreadPoolExecutor(2) as pool:

        def drawing(name: str) -> httpx.Response:
            headers = {"Idempotency-Key": name} | ASYNC
            return client.post("/v1/samples", json=body, headers=headers)

        def completing(name: str) -> httpx.Response:
            fields, headers = {"n": "2", "known_rows": "1"}, {"Idempotency-Key": name} | ASYNC
            return client.post("/v1/completions", files=picture, data=fields, headers=headers)

        engine = app_state.models["grey"].engine
        queue = engine.queue
        drawn = drawing("draw").json()["id"]
        until(lambda: engine.slots_in_use == 2)  # the others fill the queue
        begun = drawn, completing("complete").json()["id"]
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


@dataclass(frozen=True, kw_only=True, eq=False)
class ExtendedSpec(GenerationSpec):
    """Spec with new fields, which the fingerprint does not know."""

    top_k: int = 0
    bias: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros(5000, np.float32))


SAMPLING: list[dict[str, Any]] = [
    {name: not value if isinstance(value, bool) else value + 3}
    for name, value in asdict(SamplingParams()).items()
]


@pytest.mark.parametrize(
    "change",
    [{"n": 2}, *({"sampling": SamplingParams(**{"label": 1, **option})} for option in SAMPLING),
     {"canvas": np.ones((GREY.pixels, 1), np.uint8)},
     {"known": np.arange(GREY.pixels) < 7}, {"top_k": 5},
     {"bias": (np.arange(5000) == 2500).astype(np.float32)}],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_every_field_of_the_spec_changes_the_fingerprint(change: dict[str, Any]) -> None:
    canvas, known = np.zeros((GREY.pixels, 1), np.uint8), np.arange(GREY.pixels) < 5
    spec = ExtendedSpec(n=1, seed=0, canvas=canvas, known=known, sampling=SamplingParams(label=1))
    mark = fingerprint("grey", spec, 0)
    assert fingerprint("grey", replace(spec, canvas=canvas.copy()), 0) == mark
    assert fingerprint("grey", replace(spec, **change), 0) != mark
    assert len({fingerprint("grey", spec, None), fingerprint("colour", spec, 0), mark}) == 3


def test_a_failed_request_is_submitted_again() -> None:
    queue = Queue("it", GREY, QueueLimits(), Clock())
    store = store_for(queue)

    def submit() -> Generation:
        spec = GenerationSpec(n=1, seed=0)
        return store.get_or_submit(
            RequestKey("", "a", b""), lambda: QueuedGeneration(queue, queue.submit(spec))
        ).generation

    first = submit()
    assert submit() is first
    first.error = "drawing failed"
    queue.withdraw(first)
    queue.finish(first)
    assert submit() is not first


def test_has_result_is_false_for_failed_cancelled_and_lost_generations() -> None:
    """Otherwise an upload would be decoded although the queue has no room for it."""
    clock = Clock()
    queue = Queue("it", GREY, QueueLimits(keep_seconds=10), clock)
    store = store_for(queue)

    def begin(name: str) -> Generation:
        key = RequestKey("me", name, b"")
        spec = GenerationSpec(n=1, seed=0)
        return store.get_or_submit(
            key, lambda: QueuedGeneration(queue, queue.submit(spec))
        ).generation

    begun = {name: begin(name) for name in ("waits", "cancelled", "failed", "forgotten")}
    assert not store.has_result("me", None)
    assert not store.has_result("another", "waits")
    assert all(store.has_result("me", name) for name in begun)
    queue.cancel(begun["cancelled"])
    begun["failed"].error = "drawing failed"
    queue.withdraw(begun["forgotten"])
    queue.finish(begun["forgotten"])
    assert store.has_result("me", "forgotten")
    clock.now += 11
    assert [name for name in begun if store.has_result("me", name)] == ["waits"]
