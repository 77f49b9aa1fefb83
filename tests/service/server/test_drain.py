"""Tests of draining: requests in progress are finished or answered with 503."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from scanline.service.http.middleware.server_errors import ServerErrorMiddleware
from scanline.service.recipes import png_encoding
from scanline.service.server import DrainingServer, uvicorn_config
from scanline.service.state.app_state import AppState
from tests.service.distributed.fixtures import import_with_ray
from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import DEADLINE, GREY, build, check_error, listening, until

FLUSH = 1  # seconds that open connections have after the drain


@contextlib.contextmanager
def process(drain_seconds: float) -> Iterator[tuple[DrainingServer, AppState, httpx.Client]]:
    app_state, app = build({"drain_seconds": drain_seconds})
    server = DrainingServer(uvicorn_config(app, app_state, flush=FLUSH), app_state)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started and app_state.ready, "the server's start")
        port = server.servers[0].sockets[0].getsockname()[1]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE) as client:
            yield server, app_state, client
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture
def encoding(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Block the encoding of PNG; return events for "is blocked" and "may go on"."""
    held, go_on = threading.Event(), threading.Event()
    encode: Any = png_encoding.to_png  # type: ignore[attr-defined]

    def hold(*arguments: Any) -> bytes:
        held.set()
        go_on.wait(DEADLINE)
        data: bytes = encode(*arguments)
        return data

    monkeypatch.setattr(png_encoding, "to_png", hold)
    return held, go_on


def test_draining_waits_for_replies_being_encoded(
    encoding: tuple[threading.Event, threading.Event],
) -> None:
    held, go_on = encoding
    with process(DEADLINE) as (server, app_state, client), ThreadPoolExecutor(1) as pool:
        asked = pool.submit(client.post, "/v1/samples", json={"seed": 1})
        assert held.wait(DEADLINE)
        server.handle_exit(signal.SIGTERM, None)
        until(lambda: not any(m.engine.alive for m in app_state.models.values()), "closed engines")
        time.sleep(2 * FLUSH)  # longer than the flush time
        for _ in range(2):
            draining = client.get("/readyz")
            assert draining.status_code == 503
            assert draining.headers["connection"] == "close"  # so that retries reach another server
        go_on.set()
        assert asked.result().status_code == 200
        until(lambda: server.should_exit, "the end")


def test_engines_are_closed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a step hangs, each attempt takes the whole drain time."""
    closed: list[float] = []
    with process(0.1) as (server, app_state, _):
        close = app_state.registry.close

        def record(seconds: float) -> None:
            closed.append(seconds)
            close(seconds)

        monkeypatch.setattr(app_state.registry, "close", record)
        server.handle_exit(signal.SIGTERM, None)
        until(lambda: server.should_exit, "the end")
    assert closed == [0.1]


def test_a_signal_may_interrupt_the_event_loop_while_it_holds_a_lock() -> None:
    with process(DEADLINE) as (server, app_state, _):
        with app_state.registry._lock:
            interrupt = threading.Thread(
                target=server.handle_exit, args=(signal.SIGTERM, None), daemon=True
            )
            interrupt.start()
            interrupt.join(DEADLINE)
            assert not interrupt.is_alive()
        until(lambda: server.should_exit, "the end")


def test_a_reply_that_outlasts_the_drain_is_503(
    encoding: tuple[threading.Event, threading.Event],
) -> None:
    held, go_on = encoding
    with process(0.1) as (server, _, client), ThreadPoolExecutor(1) as pool:
        asked = pool.submit(client.post, "/v1/samples", json={"seed": 1})
        assert held.wait(DEADLINE)
        server.handle_exit(signal.SIGTERM, None)
        reply = asked.result()
        go_on.set()
        check_error(reply, 503, "closing")
        assert "send the request again" in reply.text


def test_a_request_cancelled_within_its_reply_is_not_answered_twice() -> None:
    sent: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise asyncio.CancelledError

    async def record(message: Message) -> None:
        sent.append(message)

    async def ask() -> None:
        await ServerErrorMiddleware(app)({"type": "http", "state": {}}, None, record)  # type: ignore[arg-type]

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(ask())
    assert [message["type"] for message in sent] == ["http.response.start"]


def test_a_broken_engine_fails_the_health_check_of_a_frontend() -> None:
    """Ray Serve then replaces it."""
    frontend = import_with_ray("scanline.service.distributed.application").Frontend({}, {})
    frontend._app_state, app = build(decoders={"grey": FakeDecoder(GREY, 2)})
    with listening(app, lambda: frontend._app_state.ready):
        frontend.check_health()
        frontend._app_state.models["grey"].engine.broken = True
        with pytest.raises(RuntimeError, match="grey cannot draw any more"):
            frontend.check_health()
