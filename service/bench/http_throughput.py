"""What the service costs: images a second over HTTP beside the decoder's own, in one run."""

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
from scanline.model.bench.cpu import start_blank_images
from scanline.model.checkpoint import Checkpoint, save_checkpoint
from scanline.model.decoders.base import Decoder
from scanline.model.decoders.factory import create_decoder
from scanline.service.bench.http_clients import Workload, pixels_drawn, running_clients

CLIENTS, IMAGES, SLOTS = 16, 16, 64  # 256 images in flight on 64 slots
DECODER_SECONDS = 2.0  # a quarter of a second swings too much
REPLY_SECONDS = 4.0
READY_SECONDS = 60.0
# What the decoder is timed with alone: a model's own defaults would cost it more.
PLAIN = {"temperature": 1.0, "top_p": 1.0, "guidance": 1.0}


def decoder_rate(decoder: Decoder) -> float:
    """Draw an image in every slot, some seconds long, and give images a second."""
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
    """Serve a folder's models in a process of their own; yields the port."""
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
                raise RuntimeError("the server ended before it was ready; why is said above")
            with contextlib.suppress(httpx.TransportError):
                if http.get("/readyz").status_code == 200:
                    return
            time.sleep(0.1)
    raise RuntimeError(f"the server did not get ready within {READY_SECONDS:g} s")


def first_pixel_milliseconds(port: int) -> float:
    """Time from a request to the first pixel of its stream, on an idle server."""
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
        http.get("/livez")  # the connection is there already
        began = time.perf_counter()
        with http.stream("POST", "/v1/samples", json={"stream": True} | PLAIN) as reply:
            for line in reply.iter_lines():
                if line == "event: pixels":
                    milliseconds = (time.perf_counter() - began) * 1e3
                    # Or it would be drawn on, beside what is timed next.
                    http.delete(f"/v1/generations/{reply.headers['x-generation-id']}")
                    return milliseconds
    raise RuntimeError("the stream ended without a pixel")


def reply_rate(port: int, accept: str, pixels: int) -> float:
    """Have clients ask for images of so many pixels, and give how many are drawn a second."""
    with running_clients(Workload(port, accept, PLAIN, IMAGES, CLIENTS), pixels) as wait:
        drawn, began = pixels_drawn(port), time.perf_counter()
        wait(REPLY_SECONDS)
        return (pixels_drawn(port) - drawn) / pixels / (time.perf_counter() - began)


def measure_http_throughput(
    checkpoint: Checkpoint, backend: str, repeats: int = 5
) -> dict[str, Any]:
    """Measure a model; medians of ``repeats``.

    Each repeat times the decoder alone, then JSON replies, then streams, so that their ratios
    hold even where the machine's speed drifts.
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
    """Lay a result out for reading, a figure a line."""
    return "\n".join(f"{key.replace('_', ' '):28} {value}" for key, value in result.items())
