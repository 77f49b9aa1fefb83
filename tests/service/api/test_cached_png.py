"""Samples by URL, with ETags."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from scanline.model.noise import MAX_SEED
from scanline.service.engine.engine import Engine
from scanline.service.engine.generation import GenerationSpec
from scanline.service.engine.image import FinishReason
from scanline.service.state.app_state import AppState
from tests.service.fake_decoders import FakeDecoder, fake_image
from tests.service.fixtures import (
    GREY,
    build,
    check_error,
    decode_png,
    listening,
    talking_to,
    until,
)


def test_a_sample_url_supports_etags(client: httpx.Client) -> None:
    address = "/v1/samples/grey/7.png?label=one&temperature=0.8&top_p=0.9&guidance=1.5"
    reply = client.get(address)
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "image/png"
    assert reply.headers["cache-control"] == "public, no-cache"
    body = {"seed": 7, "label": "one", "temperature": 0.8, "top_p": 0.9, "guidance": 1.5}
    posted = client.post("/v1/samples", json=body, headers={"Accept": "image/png"})
    assert reply.content == posted.content
    tag = reply.headers["etag"]
    for known in ([tag], [f'"other", W/{tag}'], ["*"], ['"other"', tag]):
        again = client.get(address, headers=[("If-None-Match", each) for each in known])
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert client.get(address, headers={"If-None-Match": '"x"'}).content == reply.content
    assert client.head(address).headers["etag"] == tag
    others = ["/v1/samples/grey/8.png", "/v1/samples/grey/7.png", "/v1/samples/colour/7.png",
              "/v1/samples/grey/7.png?label=one"]  # fmt: skip
    tags = {tag, *(client.get(other).headers["etag"] for other in others)}
    assert len(tags) == 5
    for seed in (0, MAX_SEED):
        assert client.get(f"/v1/samples/grey/{seed}.png").status_code == 200
    plain = client.get("/v1/samples/grey/7.png")
    assert client.get("/v1/samples/grey/7.png?label=").headers["etag"] == plain.headers["etag"]


@pytest.mark.parametrize(
    ("address", "status", "param"),
    [
        ("grey/-1.png", 400, "seed"),
        (f"grey/{MAX_SEED + 1}.png", 400, "seed"),
        (f"grey/{'1' * 5000}.png", 400, "seed"),
        ("grey/x.png", 400, "seed"),
        ("grey/7.5.png", 400, "seed"),
        ("grey/7.jpg", 404, None),
        ("none/7.png", 404, "model"),
        ("grey/7.png?label=toad", 400, "label"),
        ("grey/7.png?temperature=3", 400, "temperature"),
        ("grey/7.png?guidance=2", 400, "guidance"),
    ],
)
def test_an_invalid_sample_url_is_refused_and_not_cached(
    client: httpx.Client, address: str, status: int, param: str | None
) -> None:
    reply = client.get(f"/v1/samples/{address}")
    message = check_error(reply, status, param=param)
    assert "conversion" not in message  # Python's message about long integers
    assert reply.headers["cache-control"] == "no-store"
    assert "etag" not in reply.headers


def test_simultaneous_requests_for_a_sample_draw_it_once(
    held: tuple[AppState, httpx.Client, threading.Event],
) -> None:
    app_state, client, go_on = held
    engine = app_state.models["grey"].engine
    assert isinstance(engine, Engine)
    assert isinstance(engine.decoder, FakeDecoder)
    with ThreadPoolExecutor(6) as pool:
        replies = [pool.submit(client.get, "/v1/samples/grey/3.png") for _ in range(6)]
        queue = engine.queue
        until(lambda: [g.readers for g in tuple(queue._live.values())] == [6])
        go_on.set()
        pictures = {reply.result().content for reply in replies}
        assert {slot for slots, _ in engine.decoder.steps for slot in slots} == {0}
    (picture,) = pictures
    expected = fake_image(GREY, GenerationSpec(n=1, seed=3), 0)
    assert np.array_equal(decode_png(picture, GREY), expected)


def test_another_variant_has_another_etag(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster's replicas may be of different variants."""
    decoder = FakeDecoder(GREY, 2)
    app_state, app = build(decoders={"grey": decoder})
    with talking_to(app) as client:
        first = client.get("/v1/samples/grey/3.png").headers["etag"]
        asked = {"If-None-Match": first}
        assert client.get("/v1/samples/grey/3.png", headers=asked).status_code == 304
        engine = app_state.models["grey"].engine
        monkeypatch.setattr(engine, "variant", "another kind")
        reply = client.get("/v1/samples/grey/3.png", headers=asked)
        assert reply.status_code == 200
        assert reply.headers["etag"] != first


def test_a_cancelled_sample_is_an_error(
    held: tuple[AppState, httpx.Client, threading.Event],
) -> None:
    app_state, client, go_on = held
    queue = app_state.models["grey"].engine.queue
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(client.get, "/v1/samples/grey/3.png")
        until(lambda: queue._live)
        (generation,) = queue._live.values()
        until(lambda: generation.readers == 1)
        queue.cancel(generation)
        go_on.set()
        check_error(asked.result(), 409, "cancelled")
    assert generation.images[0].finish_reason is FinishReason.CANCELLED
    assert client.get("/v1/samples/grey/3.png").status_code == 200


def test_with_an_api_key_a_sample_is_cached_privately() -> None:
    app_state, app = build({"api_key": "a"})
    with listening(app, lambda: app_state.ready) as url:
        address = f"{url}/v1/samples/grey/3.png"
        check_error(httpx.get(address, timeout=60), 401)
        reply = httpx.get(address, headers={"Authorization": "Bearer a"}, timeout=60)
        assert reply.headers["cache-control"].startswith("private, ")
