"""Failures of the server: a full queue, decoder errors, bugs, loading and shutdown."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from starlette.datastructures import UploadFile

from scanline.model.checkpoint import Checkpoint
from scanline.model.decoders import memory as decoder_memory
from scanline.model.decoders.base import BackendError
from scanline.service.app import create_app
from scanline.service.engine.engine import Engine
from scanline.service.engine.queue_limits import ClosedError
from scanline.service.server import DrainingServer, uvicorn_config
from scanline.service.state.registry import open_engine
from tests.service.api.fixtures import serve, stepwise_server
from tests.service.engine.fixtures import losing
from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import (
    COLOUR,
    GREY,
    build,
    check_error,
    encode,
    idle,
    listening,
    random_picture,
    talking_to,
    tiny_model,
    until,
)
from tests.sse_client import parse_sse


def test_full_queue_is_429_before_the_picture_is_decoded() -> None:
    with stepwise_server(max_images=4, max_waiting=4) as (api, _):
        with ThreadPoolExecutor(2) as pool:
            engine = api.app_state.models["fake"].engine
            waiting = [pool.submit(api.samples, n=4)]
            until(lambda: engine.slots_in_use == 4)
            waiting.append(pool.submit(api.samples, n=4))
            until(lambda: engine.queue.waiting == 4)
            for refused in (api.samples(n=1), api.complete(b"no picture", known_rows=1)):
                check_error(refused, 429, "queue_full")
                assert refused.json()["error"]["type"] == "rate_limit_error"
                assert 1 <= int(refused.headers["retry-after"]) <= 120
            api.app_state.models["fake"].engine.decoder.opened.set()  # type: ignore[attr-defined]
            assert [w.result().status_code for w in waiting] == [200, 200]
        assert api.samples(n=1).status_code == 200


def test_decoder_error_is_500_and_an_error_event() -> None:
    decoder = FakeDecoder(GREY, 2)

    def fail(slots: list[int]) -> None:
        raise RuntimeError("a secret detail")

    with serve(fake=decoder) as api:
        decoder.before_step = fail
        reply = api.samples(n=3)
        assert "secret" not in check_error(reply, 500, "generation_failed")
        assert reply.json()["error"]["type"] == "server_error"
        events = parse_sse(api.samples(n=2, stream=True).content)
        assert [e.name for e in events] == ["started", "image", "image", "error"]
        assert events[-1].data["error"]["code"] == "generation_failed"
        assert set(events[-1].data["error"]) == {"message", "type", "param", "code"}
        identifier = events[0].data["id"]
        url = f"/v1/generations/{identifier}"
        assert api.client.get(url).json()["error"]
        picture = api.client.get(url, headers={"Accept": "image/png"})
        check_error(picture, 500, "generation_failed")
        decoder.before_step = lambda slots: None
        assert api.samples(n=3).status_code == 200
        assert idle(api.app_state)
        assert 'finish_reason="error",model="fake"} 5.0' in api.client.get("/metrics").text


def test_bug_is_500_and_is_logged_and_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def bug(*_: object) -> None:
        raise KeyError("inside")

    with serve({"cors_origins": "https://page.example"}) as api:
        monkeypatch.setattr("scanline.service.api.drawing.encode_generation", bug)
        reply = api.client.post(
            "/v1/samples",
            json={},
            headers={"X-Request-ID": "mine", "Origin": "https://page.example"},
        )
        assert "internal error" in check_error(reply, 500, "internal_error")
        assert "KeyError" not in reply.text
        assert reply.headers["x-request-id"] == "mine"
        assert reply.headers["access-control-allow-origin"] == "https://page.example"
        monkeypatch.undo()
        assert any("mine" in r.getMessage() and r.exc_info for r in caplog.records)
        count = 'scanline_requests_total{method="POST",route="/v1/samples",status="500"} 1.0'
        assert count in api.client.get("/metrics").text
        assert api.samples().status_code == 200


@pytest.mark.parametrize(
    ("number", "status", "code"),
    [
        (errno.ENOSPC, 503, "no_space"),
        (errno.EDQUOT, 503, "no_space"),
        (errno.EIO, 500, "internal_error"),
    ],
)
def test_a_full_or_broken_disk_is_no_fault_of_the_form(
    number: int, status: int, code: str,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    async def write(file: UploadFile, data: bytes) -> None:
        raise OSError(number, os.strerror(number))

    with serve() as api:
        with monkeypatch.context() as full:
            full.setattr(UploadFile, "write", write)
            check_error(api.complete(b"a picture", known_rows=1), status, code)
        assert os.strerror(number) in caplog.text
        check_error(api.complete(b"no picture", known_rows=1), 400, "invalid_image")


def test_slow_models_are_reported() -> None:
    """A machine without the native decoder is ready, but its operator has to know."""
    grey, colour = FakeDecoder(GREY, 8), FakeDecoder(COLOUR, 8)
    colour.slow = True
    _, app = build(decoders={"grey": grey, "colour": colour})
    with talking_to(app) as client:
        assert client.get("/readyz").text == "ready\ncolour draws slowly: see the log\n"
        slow = {one["id"]: one["slow"] for one in client.get("/v1/models").json()["data"]}
        assert slow == {"grey": False, "colour": True}


def test_readiness_while_loading_ready_and_draining() -> None:
    loaded = threading.Event()
    app_state, _ = build()
    opening = app_state.open

    def open_models() -> None:
        assert loaded.wait(60)
        opening([Checkpoint("grey", tiny_model())])

    with (
        listening(create_app(app_state, open_models), lambda: True) as url,
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        try:
            assert client.get("/livez").text == "ok\n"
            assert "loading" in check_error(client.get("/readyz"), 503, "not_ready")
            check_error(client.post("/v1/samples", json={}), 503, "not_ready")
            check_error(client.get("/v1/models"), 503, "not_ready")
            assert client.get("/metrics").status_code == 200
        finally:
            loaded.set()
        until(lambda: client.get("/readyz").status_code == 200)
        assert client.post("/v1/samples", json={}).status_code == 200
        app_state.drain()
        assert client.get("/livez").status_code == 200
        why = check_error(client.get("/readyz"), 503, "not_ready")
        assert why == "not ready: shutting down"
        check_error(client.post("/v1/samples", json={}), 503, "closing")


def test_drain_while_loading_refuses_work() -> None:
    app_state, _ = build()
    app_state.drain(0)
    app_state.open([Checkpoint("grey", tiny_model())])
    assert not app_state.ready
    engine = app_state.models["grey"].engine
    assert not engine.alive
    with pytest.raises(ClosedError):
        engine.queue.check_capacity(1)


def test_models_that_fail_to_open_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        raise MemoryError("no room")

    app_state, _ = build()
    monkeypatch.setattr("scanline.service.state.registry.create_decoder", broken)
    app_state.open([Checkpoint("grey", tiny_model())])
    assert not app_state.ready
    assert app_state.failure is not None
    assert "no room" in app_state.failure


def test_the_setting_threads_reaches_the_decoder() -> None:
    app_state, _ = build({"threads": 3})
    app_state.open([Checkpoint("grey", tiny_model())])
    assert app_state.failure is not None
    assert "the reference backend uses torch's threads" in app_state.failure


def test_models_become_available_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is still loading must not be reported as missing."""
    app_state, _ = build()
    seen: list[int] = []

    def opening(checkpoint: Checkpoint, *_: object) -> Engine:
        seen.append(len(app_state.models))
        return open_engine(checkpoint, app_state.settings)

    two = [Checkpoint(name, tiny_model()) for name in ("one", "two")]
    app_state.open(two, opening)
    assert seen == [0, 0]
    assert list(app_state.models) == ["one", "two"]
    app_state.drain(0)

    closed: list[str] = []

    def breaking(checkpoint: Checkpoint, *_: object) -> Engine:
        if checkpoint.name == "two":
            raise BackendError("no room")
        engine = open_engine(checkpoint, app_state.settings)
        monkeypatch.setattr(engine, "close", lambda seconds: closed.append(checkpoint.name))
        return engine

    app_state, _ = build()
    app_state.open(two, breaking)
    assert (app_state.failure, app_state.models, closed) == ("no room", {}, ["one"])

    def fail(*_: object) -> None:
        raise BackendError("no memory for scores")

    monkeypatch.setattr("scanline.service.state.registry.likelihood_network", fail)
    app_state, _ = build()
    app_state.open(two, breaking)
    assert (app_state.failure, closed) == ("no memory for scores", ["one", "one"])


def test_models_that_do_not_fit_into_memory_together_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The slots of the first model do not use their memory until they draw."""
    two = [Checkpoint(name, tiny_model()) for name in ("one", "two")]
    alone, _ = build({"slots": 8})
    alone.open(two[:1])
    memory = alone.models["one"].engine.memory
    alone.drain(0)
    assert memory > 0
    monkeypatch.setattr(
        decoder_memory, "free_memory", lambda: int((1.5 * memory + 1) / decoder_memory.SHARE)
    )
    both, _ = build({"slots": 8})
    both.open(two)
    assert both.models == {}
    assert both.failure is not None
    assert both.failure.startswith("the slots of one and two need ")
    assert both.failure.endswith(": set SCANLINE_SLOTS to 6, or serve fewer models")
    fitting, _ = build({"slots": 6})
    fitting.open(two)
    assert list(fitting.models) == ["one", "two"]
    fitting.drain(0)


def test_model_with_default_guidance_needs_two_slots() -> None:
    app_state, _ = build({"slots": 1})
    app_state.open([Checkpoint("one", tiny_model(), {"defaults": {"guidance": 2.5}})])
    assert app_state.models == {}
    assert app_state.failure is not None
    assert "set SCANLINE_SLOTS to 2" in app_state.failure
    plain, _ = build({"slots": 1})
    plain.open([Checkpoint("one", tiny_model())])
    assert list(plain.models) == ["one"]
    plain.drain(0)


def test_guidance_and_particles_need_more_than_one_slot() -> None:
    app_state, app = build({"slots": 1})
    with listening(app, lambda: app_state.ready) as url:
        body = {"model": "grey", "label": 1, "guidance": 2}
        refused = httpx.post(f"{url}/v1/samples", json=body, timeout=60)
        message = check_error(refused, 400, "too_many", "guidance")
        assert "set guidance to 1" in message
        files = {"image": encode(random_picture())}
        for guidance, advice in ((1, "fewer particles"), (2, "set guidance to 1 (now 2)")):
            form = {"known_rows": 1, "label": "one", "particles": 2, "guidance": guidance}
            refused = httpx.post(f"{url}/v1/completions", data=form, files=files, timeout=60)
            assert check_error(refused, 400, "too_many", "particles").endswith(advice)


def test_broken_decoder_ends_the_process() -> None:
    decoder = FakeDecoder(GREY, 2)
    app_state, app = build(decoders={"grey": decoder})
    with listening(app, lambda: app_state.ready) as url:
        process = DrainingServer(uvicorn_config(app, app_state), app_state)
        assert not asyncio.run(process.on_tick(1))

        decoder.before_step = losing(decoder)
        check_error(httpx.post(f"{url}/v1/samples", json={}, timeout=60), 500, "generation_failed")
        until(lambda: app_state.models["grey"].engine.broken)
        app_state.ready = False
        assert not asyncio.run(process.on_tick(1))  # draining already, so other models may finish
        app_state.ready = True
        assert asyncio.run(process.on_tick(1))
        expected = "grey cannot draw any more (see the log): start the server again"
        assert app_state.failure == expected
