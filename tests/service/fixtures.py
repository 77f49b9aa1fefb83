"""Fixtures of the service's tests: settings, servers, clients and images."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import io
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import uvicorn
from numpy.typing import NDArray
from PIL import Image as Picture

from scanline.model.checkpoint import Checkpoint, save_checkpoint
from scanline.model.config import ModelConfig
from scanline.model.decoders.base import Decoder
from scanline.model.network import LinearTransformer
from scanline.service.api.cursors import parse_cursors
from scanline.service.api.events import stream_events
from scanline.service.api.requests import Granularity
from scanline.service.app import create_app
from scanline.service.engine.engine import Engine
from scanline.service.engine.generation import Clock, Generation
from scanline.service.http.disconnect import WaitingClient
from scanline.service.http.sse import StreamPacer
from scanline.service.http.thread_pool import FairThreadPool
from scanline.service.server import uvicorn_config
from scanline.service.settings import Settings
from scanline.service.state.app_state import AppState
from scanline.service.state.registry import LoadedModel
from scanline.service.state.reload import ModelReloader
from tests.conftest import random_network
from tests.service.fake_decoders import FakeDecoder
from tests.sse_client import Event, parse_sse

DEADLINE = 60.0  # generous; reached only by failing tests

GREY = ModelConfig(
    height=6, width=5, n_layers=1, n_heads=2, d_model=8, d_ff=16, classes=("zero", "one", "a frog")
)
COLOUR = dataclasses.replace(
    GREY, height=4, width=3, channels=3, head="logistic_mixture", classes=()
)


def until(condition: Callable[[], object], what: str = "the condition") -> None:
    """Poll until a condition holds."""
    deadline, pause = time.monotonic() + DEADLINE, 0.002
    while not condition():
        assert time.monotonic() < deadline, f"no success within {DEADLINE} s: {what}"
        time.sleep(pause)
        pause = min(1.5 * pause, 0.05)


def tiny_model(config: ModelConfig = GREY) -> LinearTransformer:
    """Return a small random float32 network."""
    return random_network(config).float()


def save_tiny(folder: Path, name: str = "tiny", config: ModelConfig = GREY) -> Path:
    """Write a small random checkpoint, and return its path."""
    path = folder / f"{name}.safetensors"
    save_checkpoint(path, tiny_model(config), {"validation": [{"bits_per_dim": 5.5}]})
    return path


def settings(**fields: Any) -> Settings:
    """Return settings for tests: the reference backend and few slots."""
    given: dict[str, Any] = {"backend": "reference", "slots": 8, "drain_seconds": 0.0, "port": 0}
    return Settings(**given | fields)


def build(
    fields: dict[str, Any] | None = None,
    decoders: dict[str, Decoder] | None = None,
    clock: Clock = time.monotonic,
) -> tuple[AppState, Any]:
    """Create the application and its state, with two tiny models or the given decoders."""
    app_state = AppState(settings(**(fields or {})), clock=clock)

    def open_models() -> None:
        if decoders is None:
            grey = Checkpoint("grey", tiny_model(), {"validation": [{"bits_per_dim": 5.5}]})
            app_state.open([grey, Checkpoint("colour", tiny_model(COLOUR))])
            return
        models = {}
        for name, decoder in decoders.items():
            observer = app_state.metrics.observer(name)
            engine = Engine(name, decoder, app_state.settings.queue_limits, observer)
            engine.start()
            models[name] = LoadedModel(engine, Checkpoint(name, tiny_model(decoder.config)), 0)
        app_state.serve(models)  # all at once: the server is ready from here on

    return app_state, create_app(app_state, open_models)


@contextlib.contextmanager
def listening(app: Any, ready: Callable[[], bool], port: int = 0) -> Iterator[str]:
    """Serve an application on a real socket in a thread, and yield its URL."""
    config = uvicorn_config(app, app.state.scanline, flush=2)
    config.port = port
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started and ready(), "the server's start")
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


@contextlib.asynccontextmanager
async def open_stream(
    generation: Generation, granularity: Granularity = "auto", seen: str | None = None
) -> AsyncIterator[AsyncIterator[bytes]]:
    """Open a stream of a generation's events, or of those after the event id ``seen``."""
    gone = asyncio.create_task(asyncio.sleep(60))
    yield stream_events(
        generation, WaitingClient("", gone), StreamPacer(4), FairThreadPool(1),
        granularity=granularity,
        resumed=None if seen is None else parse_cursors(seen, generation),
    )  # fmt: skip
    gone.cancel()


def streamed(
    generation: Generation, granularity: Granularity, seen: str | None = None
) -> list[Event]:
    """Return a generation's events, or those after the event id ``seen``."""

    async def read() -> bytes:
        async with open_stream(generation, granularity, seen) as stream:
            return b"".join([part async for part in stream])

    return parse_sse(asyncio.run(read()))


def complete(client: httpx.Client, data: bytes, fit: str = "cover") -> httpx.Response:
    """Request a completion of an image whose first row is known."""
    fields = {"fit": fit, "known_rows": "1"}
    return client.post("/v1/completions", files={"image": data}, data=fields)


@contextlib.contextmanager
def talking_to(app: Any) -> Iterator[httpx.Client]:
    """Serve an application on a real socket, and yield a client with a long timeout."""
    with (
        listening(app, lambda: app.state.scanline.ready) as url,
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        yield client


@contextlib.contextmanager
def reloading_server(
    folder: Path, **fields: Any
) -> Iterator[tuple[AppState, ModelReloader, httpx.Client]]:
    """Serve the models of a folder, which can be reloaded, and yield a client."""
    app_state = AppState(settings(weights=folder, **fields))
    reloader = ModelReloader(
        app_state.settings, app_state.registry, app_state.serve, app_state.metrics.model_changes
    )
    checkpoints = reloader.load()
    app_state.reloader = reloader
    with talking_to(create_app(app_state, lambda: app_state.open(checkpoints))) as client:
        yield app_state, reloader, client


def idle(app_state: AppState) -> bool:
    """Return True if no engine has waiting or running images."""
    return all(
        m.engine.alive and m.engine.queue.waiting == 0 and m.engine.slots_in_use == 0
        for m in app_state.models.values()
    )


def check_error(
    reply: httpx.Response, status: int, code: str | None = None, param: str | None = None
) -> str:
    """Check that a reply is an error in OpenAI's format, and return its message."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    body = reply.json()
    assert list(body) == ["error"]
    assert set(body["error"]) == {"message", "type", "param", "code"}
    message = body["error"]["message"]
    assert isinstance(message, str)
    assert len(message) > 10
    assert isinstance(body["error"]["type"], str)
    if code is not None:
        assert body["error"]["code"] == code
    if param is not None:
        assert body["error"]["param"] == param
    assert reply.headers["x-request-id"]
    if status in (429, 503):
        assert int(reply.headers["retry-after"]) >= 1
    return message


@contextlib.contextmanager
def logs_kept() -> Iterator[None]:
    """Restore the logging configuration, which the command line points to a temporary stream."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def decode_png(data: bytes, config: ModelConfig) -> NDArray[np.uint8]:
    """Decode a PNG that must have exactly the model's size and channels: uint8 ``[T, C]``."""
    picture = Picture.open(io.BytesIO(data))
    assert picture.format == "PNG"
    assert picture.mode == ("L" if config.channels == 1 else "RGB")
    assert picture.size == (config.width, config.height)
    return np.asarray(picture).reshape(config.pixels, config.channels)


def encode(picture: Picture.Image, kind: str = "PNG", **options: Any) -> bytes:
    """Encode an image."""
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def random_picture(config: ModelConfig = GREY, seed: int = 0) -> Picture.Image:
    """Return a random image of the model's size."""
    shape = (config.height, config.width) + ((3,) if config.channels == 3 else ())
    return Picture.fromarray(np.random.default_rng(seed).integers(0, 256, shape, np.uint8))


@contextlib.contextmanager
def held_server(
    slots: int, fields: dict[str, Any]
) -> Iterator[tuple[AppState, httpx.Client, threading.Event]]:
    """Run a server whose decoder is blocked until the event is set, or the test ends."""
    decoder, go_on = FakeDecoder(GREY, slots), threading.Event()
    decoder.before_step = lambda slots: (go_on.wait(), None)[1]
    app_state, app = build(fields, {"grey": decoder})
    with talking_to(app) as client:
        try:
            yield app_state, client, go_on
        finally:
            go_on.set()
        until(lambda: idle(app_state), "an idle server")


def metric_value(client: httpx.Client, metric: str) -> float:
    """Return the value of a metric at ``/metrics``, or 0 if it is not exported."""
    lines = client.get("/metrics").text.splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith(f"{metric} ")), 0.0)
