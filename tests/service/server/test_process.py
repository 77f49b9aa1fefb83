"""Tests of a server process: drawing, overload and disconnects."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.service.fixtures import GREY, check_error, decode_png, until
from tests.service.server.server_process import Running, serving
from tests.sse_client import parse_sse, rebuild


@pytest.fixture(scope="module")
def shared(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    log = tmp_path_factory.mktemp("log") / "server.log"
    with serving(weights, log, grace_seconds=0.2, log_format="json") as server:
        yield server
        until(server.idle)
        with socket.create_connection(server.address):  # open connections do not prevent the exit
            server.process.send_signal(signal.SIGINT)
            server.wait_for_exit()


def test_models_are_loaded_from_the_folder(shared: Running) -> None:
    names = [m["id"] for m in shared.client.get("/v1/models").json()["data"]]
    assert names == ["tiny", "slow"]  # the default, with the fewest steps, first
    body = {"model": "tiny", "n": 2, "seed": 3}
    first, second = (shared.client.post("/v1/samples", json=body).json() for _ in range(2))
    assert [i["png"] for i in first["images"]] == [i["png"] for i in second["images"]]
    stream = shared.client.post("/v1/samples", json=body | {"stream": True})
    events = parse_sse(stream.content)
    drawn = rebuild(events, GREY)
    single = shared.client.post(
        "/v1/samples", json=body | {"n": 1}, headers={"Accept": "image/png"}
    )
    np.testing.assert_array_equal(drawn[0], decode_png(single.content, GREY))


def test_a_thousand_requests_at_once_end_in_200_or_429(shared: Running) -> None:
    body = json.dumps({"model": "tiny", "n": 4}).encode()
    head = (
        "POST /v1/samples HTTP/1.1\r\nHost: here\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )

    async def ask() -> httpx.Response:
        reader, writer = await asyncio.open_connection(*shared.address)
        writer.write(head.encode() + body)
        raw = await reader.read()
        writer.close()
        top, _, content = raw.partition(b"\r\n\r\n")
        status, *lines = top.decode().split("\r\n")
        headers = [tuple(line.split(": ", 1)) for line in lines]
        return httpx.Response(int(status.split()[1]), headers=headers, content=content)  # type: ignore[arg-type]

    async def ask_all() -> list[httpx.Response]:
        return await asyncio.gather(*(ask() for _ in range(1000)))

    replies = asyncio.run(ask_all())
    assert {r.status_code for r in replies} == {200, 429}
    for reply in replies:
        if reply.status_code == 200:
            assert [i["finish_reason"] for i in reply.json()["images"]] == ["length"] * 4
        else:
            check_error(reply, 429, "queue_full")
            assert 1 <= int(reply.headers["retry-after"]) <= 120
    until(shared.idle)
    assert shared.client.post("/v1/samples", json={"model": "tiny"}).status_code == 200


def test_disconnected_clients_free_their_slots(shared: Running) -> None:
    async def leave(stream: bool) -> None:
        body = {"model": "slow", "n": 20, "stream": stream}
        async with httpx.AsyncClient(base_url=shared.url, timeout=60) as client:
            asking = asyncio.create_task(client.post("/v1/samples", json=body))
            full = lambda: shared.gauge("scanline_running_images", "slow") == 8  # noqa: E731
            await asyncio.to_thread(until, full, "full slots")
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    for stream in (False, True):
        asyncio.run(leave(stream))
        until(shared.idle, "free slots")
    # And a client that stays connected without reading, and then disconnects.
    request = b'{"model": "slow", "n": 20, "stream": true, "granularity": "pixel"}'
    head = (
        "POST /v1/samples HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(request)}\r\n\r\n"
    )
    with socket.create_connection(shared.address) as mute:
        mute.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        mute.sendall(head.encode() + request)
        until(lambda: shared.gauge("scanline_running_images", "slow") == 8)
        other = shared.client.post("/v1/samples", json={"model": "tiny"})
        assert other.status_code == 200
    until(shared.idle, "free slots")


@pytest.mark.slow
def test_connections_without_http_do_no_harm(shared: Running) -> None:
    cut_short = b"POST /v1/samples HTTP/1.1\r\nContent-Length: 9\r\n\r\n{"
    endless = b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 100_000
    for junk in (b"\0\xff" * 100, b"GET", cut_short, endless):
        with socket.create_connection(shared.address) as connection:
            connection.sendall(junk)
    assert shared.client.get("/readyz").status_code == 200
