"""Benchmark of the throughput over HTTP relative to the decoder's own (``bench --http``)."""

from __future__ import annotations

import contextlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from scanline.kernels.native.cpu import cpu, usable_cores
from scanline.model.bench.timing import start_blank_images
from scanline.model.checkpoint import Checkpoint, save_checkpoint
from scanline.model.decoders.base import Decoder
from scanline.model.decoders.factory import create_decoder
from scanline.service.bench.http_clients import PLAIN, Workload, pixels_drawn, running_clients

CLIENTS, IMAGES, SLOTS = 16, 16, 64  # 256 images in flight on 64 slots
DECODER_SECONDS = 2.0  # 0.25 seconds vary too much
REPLY_SECONDS = 4.0
READY_SECONDS = 60.0


def decoder_rate(decoder: Decoder) -> float:
    """Return the images/s of a decoder with all slots in use."""
    config, drawn, seconds = decoder.config, 0, 0.0
    while seconds < DECODER_SECONDS:
        slots = start_blank_images(decoder)
        began = time.perf_counter()
        for _ in range(config.height):
            decoder.step(slots, config.width)
        seconds += time.perf_counter() - began
        drawn += len(slots)
    return drawn / seconds


@contextlib.contextmanager
def running_server(folder: Path, backend: str) -> Iterator[int]:
    """Serve the models of a folder in another process, and yield the port."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as probe:
        port = probe.getsockname()[1]
    options = ["--weights", str(folder), "--port", str(port), "--backend", backend]
    command = [sys.executable, "-m", "scanline.service", "serve", *options, "--slots", str(SLOTS)]
    with subprocess.Popen([*command, "--log-level", "warning"]) as process:
        try:
            _wait_ready(process, port)
            yield port
        finally:
            process.send_signal(signal.SIGTERM)


def _wait_ready(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + READY_SECONDS
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as http:
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise RuntimeError("the server ended before it was ready, see above")
            with contextlib.suppress(httpx.TransportError):
                if http.get("/readyz").status_code == 200:
                    return
            time.sleep(0.1)
    raise RuntimeError(f"the server was not ready within {READY_SECONDS:g} s")


def first_pixel_milliseconds(port: int) -> float:
    """Measure the time from a request to the first pixel of its stream on an idle server, in ms."""
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
        http.get("/livez")  # opens the connection
        began = time.perf_counter()
        with http.stream("POST", "/v1/samples", json={"stream": True} | PLAIN) as reply:
            for line in reply.iter_lines():
                if line == "event: pixels":
                    milliseconds = (time.perf_counter() - began) * 1e3
                    # Else it would go on during the next measurement.
                    http.delete(f"/v1/generations/{reply.headers['x-generation-id']}")
                    return milliseconds
    raise RuntimeError("the stream ended without a pixel")


def reply_rate(port: int, accept: str, pixels: int) -> float:
    """Return the images/s that clients receive as ``accept``; an image has ``pixels`` pixels."""
    with running_clients(Workload(port, accept, PLAIN, IMAGES, CLIENTS), pixels) as wait:
        drawn, began = pixels_drawn(port), time.perf_counter()
        wait(REPLY_SECONDS)
        return (pixels_drawn(port) - drawn) / pixels / (time.perf_counter() - began)


def measure_http_throughput(
    checkpoint: Checkpoint, backend: str, repeats: int = 5
) -> dict[str, Any]:
    """Measure the throughput of a model over HTTP and by the decoder alone.

    Each repeat times the decoder, JSON replies and streams in turn, so that a drift of the
    machine's speed does not affect their ratios.

    Args:
        checkpoint: Model to serve.
        backend: Backend of the decoder.
        repeats: Number of repeats, whose medians are returned.
    """
    decoder = create_decoder(
        checkpoint.model, SLOTS, backend, precision=checkpoint.native_precision
    )
    pixels = decoder.config.pixels
    figures: dict[str, list[float]] = {"decoder": [], "json": [], "stream": [], "first": []}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{checkpoint.name}.safetensors"
        save_checkpoint(file, checkpoint.model, checkpoint.facts)
        with running_server(Path(folder), backend) as port:
            for _ in range(repeats):
                figures["decoder"].append(decoder_rate(decoder))
                figures["json"].append(reply_rate(port, "application/json", pixels))
                figures["stream"].append(reply_rate(port, "text/event-stream", pixels))
                figures["first"].append(first_pixel_milliseconds(port))
    alone = statistics.median(figures["decoder"])
    shares = {
        kind: statistics.median(
            http / own for http, own in zip(figures[kind], figures["decoder"], strict=True)
        )
        for kind in ("json", "stream")
    }
    return {
        "model": checkpoint.name,
        "backend": decoder.backend,
        "variant": decoder.variant,
        "hardware": f"{cpu()[0]}, {usable_cores()} cores",
        "clients": CLIENTS,
        "images_in_flight": CLIENTS * IMAGES,
        "slots": SLOTS,
        "decoder_images_per_second": round(alone, 2),
        "json_images_per_second": round(statistics.median(figures["json"]), 2),
        "stream_images_per_second": round(statistics.median(figures["stream"]), 2),
        "json_share": round(shares["json"], 3),
        "stream_share": round(shares["stream"], 3),
        "first_pixel_milliseconds": round(statistics.median(figures["first"]), 1),
    }


def table(result: dict[str, Any]) -> str:
    """Format a result as a table, one value per line."""
    return "\n".join(f"{key.replace('_', ' '):28} {value}" for key, value in result.items())
