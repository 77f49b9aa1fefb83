"""Tests that uploads, scores and replies of one client do not hold up the others."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from scanline.service.api import drawing
from scanline.service.api import scoring as scores
from scanline.service.images import read_masked_image
from scanline.service.openai import rendering
from scanline.service.state.app_state import AppState
from tests.robustness.attacks.catalog import ATTACKS
from tests.robustness.attacks.runner import under_attack
from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import (
    DEADLINE,
    GREY,
    build,
    check_error,
    complete,
    encode,
    idle,
    listening,
    random_picture,
    talking_to,
    until,
)


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[AppState, httpx.Client]]:
    app_state, app = build({"max_images": 64})
    with talking_to(app) as client:
        yield app_state, client
        until(lambda: idle(app_state), "an idle server")


@pytest.fixture(scope="module")
def digits() -> Iterator[httpx.URL]:
    """A server with images of the size that the attacks expect."""
    config = replace(GREY, height=28, width=28)
    app_state, app = build(decoders={"mnist": FakeDecoder(config, 64)})
    with listening(app, lambda: app_state.ready) as url:
        pictures = [("image", encode(Image.new("L", (28, 28)))) for _ in range(256)]
        assert httpx.post(f"{url}/v1/score", files=pictures, timeout=DEADLINE).status_code == 200
        yield httpx.URL(url)
        until(lambda: idle(app_state), "an idle server")


@pytest.fixture
def client(server: tuple[AppState, httpx.Client]) -> httpx.Client:
    return server[1]


def test_uploads_and_replies_do_not_wait_for_each_other(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def hold(*arguments: Any) -> Any:
        go_on.wait(DEADLINE)
        return read_masked_image(*arguments)

    monkeypatch.setattr(drawing, "read_masked_image", hold)
    with ThreadPoolExecutor(8) as pool:
        uploads = [pool.submit(complete, client, encode(random_picture())) for _ in range(8)]
        replies = [client.post("/v1/samples", json={}) for _ in range(3)]
        assert [reply.status_code for reply in replies] == [200] * 3
        assert not any(upload.done() for upload in uploads)
        go_on.set()
        assert {upload.result().status_code for upload in uploads} == {200}


class Measuring:
    """Scoring function that blocks until released; ``rows`` has the first value of each call."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.go_on = threading.Semaphore(0)

    def __call__(self, network: Any, canvases: Any, label: int) -> Any:
        assert len(canvases) == 1
        self.rows.append(int(canvases[0].ravel()[0]))
        assert self.go_on.acquire(timeout=DEADLINE)
        return np.ones(canvases.shape[:2], np.float32)


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> Measuring:
    held = Measuring()
    monkeypatch.setattr(scores, "STEPS_PER_CALL", 1)
    monkeypatch.setattr(scores, "pixel_bits", held)
    return held


def grey(value: int) -> tuple[str, bytes]:
    return ("image", encode(Image.new("L", (5, 6), value)))


def test_scores_of_several_callers_take_turns(
    server: tuple[AppState, httpx.Client], measuring: Measuring
) -> None:
    app_state, client = server
    with ThreadPoolExecutor(2) as pool:
        long = pool.submit(client.post, "/v1/score", files=[grey(1)] * 6)
        until(lambda: measuring.rows == [1])
        short = pool.submit(client.post, "/v1/score", files=[grey(2)])
        until(lambda: app_state.score_pool.queued == 1)
        for _ in range(7):
            measuring.go_on.release()
        assert long.result().status_code == short.result().status_code == 200
    assert measuring.rows == [1, 2, 1, 1, 1, 1, 1]


def test_scoring_stops_when_the_client_disconnects(
    client: httpx.Client, measuring: Measuring
) -> None:
    request = client.build_request("POST", "/v1/score", files=[grey(3)] * 20)
    head = f"POST /v1/score HTTP/1.1\r\nHost: x\r\nContent-Type: {request.headers['content-type']}"
    body = request.read()
    url = client.base_url
    with socket.create_connection((url.host, url.port or 0)) as leaver:
        leaver.sendall(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        until(lambda: measuring.rows == [3])
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(client.post, "/v1/score", files=[grey(4)])
        for _ in range(30):
            measuring.go_on.release()
        assert other.result().status_code == 200
    assert measuring.rows.count(3) < 20
    assert measuring.rows[-1] == 4


def test_enlarged_replies_have_a_limit_that_the_error_names(client: httpx.Client) -> None:
    large = {"prompt": "", "model": "grey", "n": 64, "size": "1700x2040", "output_format": "webp"}
    message = check_error(client.post("/v1/images/generations", json=large), 400, param="size")
    assert "20,000,000" in message
    assert "at most 5 of this size" in message
    looks = large | {"n": 3, "stream": True, "partial_images": 1}
    check_error(client.post("/v1/images/generations", json=looks), 400, "too_many", "size")
    plain = large | {"n": 2, "size": "auto"}
    assert client.post("/v1/images/generations", json=plain).status_code == 200


def test_encoding_stops_when_the_client_disconnects(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    go_on = threading.Semaphore(0)

    def hold(*arguments: object) -> str:
        begun.append(1)
        assert go_on.acquire(timeout=DEADLINE)
        return ""

    monkeypatch.setattr(rendering.Rendering, "encode_image", hold)
    body = b'{"prompt": "", "model": "grey", "n": 10, "size": "600x720"}'
    url = client.base_url
    with socket.create_connection((url.host, url.port or 0)) as leaver:
        leaver.sendall(
            b"POST /v1/images/generations HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        until(lambda: begun)
    with ThreadPoolExecutor(1) as pool:
        small = {"prompt": "", "model": "grey", "size": "600x720"}
        other = pool.submit(client.post, "/v1/images/generations", json=small)
        for _ in range(20):
            go_on.release()
        assert other.result().status_code == 200
    assert len(begun) < 11


QUICK = ("one endless header", "JSON, 590 KB of wrong values", "PNG of 4096² pixels, cover",
         "score of 256 pictures, left after 1 s", "half a head")  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.broad) for n in ATTACKS]
)
def test_another_client_is_served_during_an_attack(digits: httpx.URL, name: str) -> None:
    with under_attack((digits.host, digits.port or 0), name, connections=4):
        for _ in range(5):
            with contextlib.closing(httpx.Client(base_url=digits, timeout=DEADLINE)) as other:
                assert other.post("/v1/samples", json={}).status_code == 200
