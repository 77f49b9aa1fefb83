"""Tests of the lingering close, and of clients that disconnect early."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import select
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from scanline.service.http.protocol import connection as connections
from scanline.service.http.protocol import connection_limiter
from scanline.service.state.app_state import AppState
from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import (
    DEADLINE,
    GREY,
    build,
    held_server,
    idle,
    listening,
    talking_to,
    until,
)
from tests.service.http.protocol.raw_connections import (
    REQUEST,
    REQUEST_HEAD,
    check_error_reply,
    closed_count,
    connect,
    read_all,
    serve,
)


@contextlib.contextmanager
def connected(app: FastAPI) -> Iterator[socket.socket]:
    """Serve an application and yield a connection to it."""
    with talking_to(app) as client, connect(client) as connection:
        yield connection


@pytest.mark.parametrize("closes", [b"", b"Connection: close\r\n"])
@pytest.mark.parametrize("announced", [True, False])
def test_a_client_that_sends_too_much_can_read_its_error(announced: bool, closes: bytes) -> None:
    """Closing a connection with unread bytes resets it, and the client loses the reply."""
    body, size = b" " * 2**16, 2**22
    if announced:
        length, piece, end = b"Content-Length: %d\r\n\r\n" % size, body, b""
    else:
        length, end = b"Transfer-Encoding: chunked\r\n\r\n", b"0\r\n\r\n"
        piece = b"%x\r\n%s\r\n" % (len(body), body)
    with serve(max_json=1024) as client:
        for _ in range(4):
            with connect(client) as connection:
                connection.sendall(
                    REQUEST_HEAD + closes + length + piece * (size // len(body)) + end
                )
                check_error_reply(read_all(connection), 413, "too_large")


def test_a_client_that_sends_on_gets_one_error_and_is_not_counted_as_late() -> None:
    body = b"Connection: close\r\nContent-Length: 9999999\r\n\r\n" + b" " * 2**16
    with serve(max_json=1024, header_seconds=5) as client:
        with connect(client) as connection:
            connection.sendall(REQUEST_HEAD + body)
            reply = connection.recv(65536)
            with contextlib.suppress(ConnectionResetError):
                reply += read_all(connection)
            check_error_reply(reply, 413, "too_large")
        assert closed_count(client, "late") == 0


def test_a_connection_over_the_limit_gets_a_json_error(caplog: pytest.LogCaptureFixture) -> None:
    with (
        held_server(8, {"max_connections": 2}) as (app_state, client, go_on),
        caplog.at_level(logging.WARNING, "scanline.connections"),
        contextlib.ExitStack() as stack,
    ):
        busy = [stack.enter_context(connect(client)) for _ in range(2)]
        for connection in busy:
            connection.sendall(REQUEST)
        engine = app_state.models["grey"].engine
        until(lambda: engine.slots_in_use + engine.queue.waiting == 2, "two requests")
        for _ in range(8):  # each sends its request before it reads the error
            with connect(client) as refused:
                refused.sendall(REQUEST)
                check_error_reply(read_all(refused), 503, "full")
        go_on.set()
        for connection in busy:
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
            connection.close()
        until(lambda: closed_count(client, "full") >= 1)
    assert "all 2 connections are taken: a new one is refused" in caplog.text


def test_a_request_that_ends_during_its_reply_gets_all_of_it() -> None:
    _, app = build()
    piece, waits = b"x" * 2**24, threading.Event()  # more than a socket buffers

    class Pieces(Response):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            body = {"type": "http.response.body", "body": piece}
            headers = [(b"connection", b"close"), (b"content-length", b"%d" % (2 * len(piece)))]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send(body | {"more_body": True})
            asyncio.get_running_loop().call_later(
                0.05, waits.set
            )  # once the first piece is being read
            await send(body)

    app.add_api_route("/large", lambda: Pieces(), methods=["POST"])
    with connected(app) as connection:
        connection.sendall(b"POST /large HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert waits.wait(DEADLINE)
        connection.sendall(b"0\r\n\r\n")
        time.sleep(0.05)
        reply = read_all(connection)
    assert len(reply.partition(b"\r\n\r\n")[2]) == 2 * len(piece)


def test_a_half_closed_connection_gets_its_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    """``nc -N`` closes its own side after its requests."""
    monkeypatch.setattr(connections, "PEER_CHECK_SECONDS", 0.02)
    _, app = build()
    shown, go_on = threading.Event(), threading.Event()

    async def slow() -> StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"first"
            shown.set()
            await asyncio.to_thread(go_on.wait, DEADLINE)
            yield b"last"

        return StreamingResponse(pieces(), headers={"Content-Length": "9"})

    app.add_api_route("/slow", slow)
    with connected(app) as connection:
        connection.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        assert shown.wait(DEADLINE)
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        time.sleep(0.2)  # ten checks
        go_on.set()
        assert b"\r\n\r\nfirstlast" in read_all(connection)


def test_lingering_connections_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LINGER_SECONDS", 3600.0)
    monkeypatch.setattr(connection_limiter, "MAX_LINGERING", 2)
    with (
        held_server(8, {"max_connections": 1}) as (app_state, client, go_on),
        contextlib.ExitStack() as stack,
    ):
        busy = stack.enter_context(connect(client))
        busy.sendall(REQUEST)
        engine = app_state.models["grey"].engine
        until(lambda: engine.slots_in_use + engine.queue.waiting == 1, "a request")
        for _ in range(3):
            refused = stack.enter_context(connect(client))
            check_error_reply(read_all(refused), 503, "full")
        with pytest.raises((BrokenPipeError, ConnectionResetError)):  # the third does not linger
            until(lambda: refused.sendall(b" "), "its end")
        go_on.set()
        assert busy.recv(65536).startswith(b"HTTP/1.1 200 ")
        busy.close()
        # Lingering connections do not count towards the limit.
        until(lambda: engine.running == 0)
        with connect(client) as another:
            another.sendall(REQUEST)
            assert another.recv(65536).startswith(b"HTTP/1.1 200 ")


@pytest.mark.skipif(not hasattr(select, "POLLRDHUP"), reason="needs POLLRDHUP")
def test_a_disconnect_with_a_queued_request_cancels_the_generation(
    held: tuple[AppState, httpx.Client, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "PEER_CHECK_SECONDS", 0.02)
    app_state, client, go_on = held
    with connect(client) as connection:
        connection.sendall(REQUEST)
        until(lambda: app_state.models["grey"].engine.running == 1, "a running image")
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
    until(lambda: closed_count(client, "left") == 1, "the disconnect")
    go_on.set()
    until(lambda: idle(app_state), "the cancellation")
    text = client.get("/metrics").text
    ended = re.findall(r'^scanline_images_total.*"cancelled".* (\S+)$', text, re.M)
    assert sum(map(float, ended)) == 1


def test_a_failed_server_cancels_generations_of_other_models() -> None:
    """If one engine is broken, the process ends, and no client could read the other images."""
    decoder = FakeDecoder(GREY, 1)
    decoder.before_step = lambda slots: time.sleep(0.02)
    app_state, app = build({"drain_seconds": 3600}, {"fake": decoder})
    with listening(app, lambda: app_state.ready) as url:
        headers = {"Prefer": "respond-async"}
        begun = httpx.post(f"{url}/v1/samples", json={"n": 100}, headers=headers, timeout=60).json()
        generation = app_state.models["fake"].engine.queue.find(begun["id"])
        app_state.failure = "another model cannot draw any more"
    assert generation is not None
    assert generation.closed
