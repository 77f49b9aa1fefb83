"""Benchmark of the HTTP overhead per image for each reply format (``bench --http --pretend``).

A simulated decoder samples at a given rate without CPU time, and the clients run in another
process. The measured time is therefore that of the engine and the web server.
"""

from __future__ import annotations

import asyncio
import base64
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import uvicorn
from numpy.typing import NDArray

from scanline.kernels.native.cpu import cpu, usable_cores
from scanline.model.checkpoint import Checkpoint
from scanline.model.config import ModelConfig
from scanline.model.decoders.base import Decoder, Slots
from scanline.model.network import LinearTransformer
from scanline.service.app import create_app
from scanline.service.bench.http_clients import (
    Workload,
    pixels_drawn,
    running_clients,
    send_request,
)
from scanline.service.engine.engine import Engine
from scanline.service.images import to_png
from scanline.service.recipes.recipe import HEADER_END
from scanline.service.runtime_tuning import tune_interpreter
from scanline.service.server import bind_sockets, uvicorn_config
from scanline.service.settings import Settings
from scanline.service.state.app_state import AppState
from scanline.service.state.registry import LoadedModel, spare_slots

CLIENTS, SLOTS = 16, 256
IMAGES_PER_SLOT = 4  # requested at any time
REPLY_FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    "stream, pixel": ("text/event-stream", {"granularity": "pixel"}),
    "stream, row": ("text/event-stream", {"granularity": "row"}),
    "stream, auto": ("text/event-stream", {"granularity": "auto"}),
    "json, png": ("application/json", {}),
    "json, values": ("application/json", {"output": "values"}),
    "npy": ("application/x-npy", {}),
}


class SimulatedDecoder(Decoder):
    """Decoder that returns one image at ``rate`` images/s, asynchronously like a GPU.

    Args:
        config: Network to simulate.
        max_slots: Number of slots.
        rate: Images/s.
    """

    backend = "simulated"
    max_in_flight = 2

    def __init__(self, config: ModelConfig, max_slots: int, rate: float) -> None:
        super().__init__(config, max_slots)
        self.image = _test_image(config)
        self._seconds_per_pixel = 1 / (rate * config.pixels)
        self._scheduled = self.positions.copy()
        self._in_flight: list[tuple[float, NDArray[np.int32], int]] = []  # each with its end
        self._ready_at = 0.0

    @property
    def scheduled_positions(self) -> NDArray[np.int32]:
        """Positions of the images after all launched steps."""
        return self._scheduled

    @classmethod
    def unsupported(cls, config: ModelConfig) -> str | None:
        """Return None: any model can be simulated."""
        return None

    def _reset_state(self, slots: NDArray[np.int32], lengths: NDArray[np.int32]) -> None:
        restarted = np.zeros(self.max_slots, np.bool_)
        restarted[slots] = True
        self._in_flight = [(due, rows[~restarted[rows]], n) for due, rows, n in self._in_flight]
        self.canvas[slots] = self.image  # whole; the positions limit what is read
        self.positions[slots] = self._scheduled[slots] = lengths

    def _copy_state(self, sources: NDArray[np.int32], targets: NDArray[np.int32]) -> None:
        pass

    def step(self, slots: Slots, n: int) -> None:
        """Sample n pixels, and wait for them."""
        self.launch(slots, n)
        self.synchronize()

    def launch(self, slots: Slots, n: int) -> None:
        """Start to sample n pixels."""
        rows = self._valid_slots(slots)
        before = self._scheduled[rows]
        self._scheduled[rows] = np.minimum(before + n, self.config.pixels)
        drawn = int((self._scheduled[rows] - before).sum())
        self._ready_at = max(self._ready_at, time.perf_counter()) + drawn * self._seconds_per_pixel
        self._in_flight.append((self._ready_at, rows, n))

    def synchronize(self, remaining: int = 0) -> None:
        """Wait for all launched steps but the last ``remaining``."""
        while len(self._in_flight) > remaining:
            due, rows, n = self._in_flight.pop(0)
            if (seconds := due - time.perf_counter()) > 0:
                time.sleep(seconds)
            self.positions[rows] = np.minimum(self.positions[rows] + n, self.config.pixels)


def _test_image(config: ModelConfig) -> NDArray[np.uint8]:
    """Create a disc of noise on black, which compresses about as well as a digit, ``[T, C]``."""
    H, W, C = config.height, config.width, config.channels
    y, x = np.linspace(-1, 1, H)[:, None], np.linspace(-1, 1, W)
    noise = np.random.default_rng(0).integers(0, 256, (H, W, C), np.uint8)
    noise[x**2 + y**2 > 0.3] = 0
    return noise.reshape(-1, C)


@dataclass(frozen=True)
class _Server:
    """Server in a thread of this process; ``seconds`` returns its event loop's CPU time."""

    port: int
    seconds: Callable[[], float]


@contextmanager
def _serving(network: LinearTransformer, decoder: Decoder, spare: int) -> Iterator[_Server]:
    settings = Settings(port=0, slots=decoder.max_slots - spare, drain_seconds=0.0)
    app_state = AppState(settings)
    checkpoint = Checkpoint("simulated", network)
    engine = Engine(
        checkpoint.name,
        decoder,
        settings.queue_limits,
        app_state.metrics.observer(checkpoint.name),
        spare=spare,
    )

    def open_models() -> None:
        engine.start()
        tune_interpreter()
        app_state.serve({checkpoint.name: LoadedModel(engine, checkpoint, 0)})

    config = uvicorn_config(create_app(app_state, open_models), app_state)
    sockets = bind_sockets(["127.0.0.1"], 0)
    server = uvicorn.Server(config)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        loop = runner.get_loop()

        async def read() -> float:
            return time.thread_time()

        thread = threading.Thread(target=lambda: runner.run(server.serve(sockets)))
        thread.start()
        try:
            while not (server.started and app_state.ready):
                time.sleep(0.01)
            yield _Server(
                sockets[0].getsockname()[1],
                lambda: asyncio.run_coroutine_threadsafe(read(), loop).result(),
            )
        finally:
            server.should_exit = True
            thread.join()


def _check(server: _Server, decoder: SimulatedDecoder) -> None:
    """Raise ``RuntimeError`` unless every reply format returns the image."""
    image = decoder.image
    png = to_png(image, decoder.config)
    expected = {
        "values": b'"values":[' + ",".join(map(str, image.ravel().tolist())).encode() + b"]",
        "npy": image.tobytes(),
    }
    for form, (accept, fields) in REPLY_FORMATS.items():
        kind = "npy" if accept == "application/x-npy" else fields.get("output", "png")
        reply = send_request(server.port, accept, {"n": 1} | fields)
        if not (_has_png(reply, png) if kind == "png" else expected[kind] in reply):
            raise RuntimeError(f"{form}: the reply does not contain the image")


def _has_png(reply: bytes, png: bytes) -> bool:
    """Return True if a reply contains a PNG in base64, perhaps with a recipe after its header."""
    found = re.search(rb'"png":"([^"]+)"', reply)
    file = b"" if found is None else base64.b64decode(found[1])
    return file.startswith(png[:HEADER_END]) and file.endswith(png[HEADER_END:])


def measure_http_overhead(
    checkpoint: Checkpoint, rate: float, slots: int = SLOTS, seconds: float = 2.0
) -> dict[str, Any]:
    """Measure the overhead of each reply format.

    Args:
        checkpoint: Model to simulate.
        rate: Images/s of the simulated decoder.
        slots: Number of slots.
        seconds: Duration of each measurement.

    Returns:
        Results as JSON; ``share`` is the rate of replies relative to the decoder's.
    """
    network = checkpoint.model
    spare = spare_slots(slots)
    decoder = SimulatedDecoder(network.config, slots + spare, rate)
    images = max(1, slots * IMAGES_PER_SLOT // CLIENTS)  # per request
    pixels = network.config.pixels
    rows = []
    with _serving(network, decoder, spare) as server:
        _check(server, decoder)
        for form, (accept, fields) in REPLY_FORMATS.items():
            with running_clients(
                Workload(server.port, accept, fields, images, CLIENTS), pixels
            ) as wait:
                before, began = pixels_drawn(server.port), time.perf_counter()
                loop, process = server.seconds(), time.process_time()
                wait(seconds)
                loop, process = server.seconds() - loop, time.process_time() - process
                drawn = (pixels_drawn(server.port) - before) / pixels
                took = time.perf_counter() - began
            rows.append(
                {
                    "form": form,
                    "images_per_second": round(drawn / took, 1),
                    "share": round(drawn / took / rate, 3),
                    "loop_milliseconds_per_image": round(loop / drawn * 1e3, 4),
                    "process_milliseconds_per_image": round(process / drawn * 1e3, 4),
                }
            )
    return {
        "model": checkpoint.name,
        "hardware": f"{cpu()[0]}, {usable_cores()} cores",
        "pretended_images_per_second": rate,
        "clients": CLIENTS,
        "images_per_request": images,
        "slots": slots,
        "forms": rows,
    }


def table(result: dict[str, Any]) -> str:
    """Format a result as a table, one reply format per line."""
    lines = ["format          images/s  share  loop ms/image  process ms/image"]
    lines += [
        f"{row['form']:14} {row['images_per_second']:9,.0f} {row['share']:6.1%} "
        f"{row['loop_milliseconds_per_image']:14.4f} {row['process_milliseconds_per_image']:17.4f}"
        for row in result["forms"]
    ]
    return "\n".join(lines)
