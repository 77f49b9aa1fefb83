"""Server process under test, and requests to it."""

from __future__ import annotations

import base64
import io
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from scanline.service.bench.http_clients import PLAIN
from tests.server_processes import free_port, wait_ready


class Served:
    """A server, with a count of the images that it has returned.

    Args:
        url: URL of the server.
        process: Process of the server.
        log: Lines of its log, to which more are added.
    """

    def __init__(self, url: str, process: subprocess.Popen[bytes], log: list[str]) -> None:
        self.url, self.process, self.log = url, process, log
        self.client = httpx.Client(base_url=url, timeout=120)
        self.images: Counter[str] = Counter()  # complete images by model
        self._lock = threading.Lock()

    def count(self, model: str, images: int) -> None:
        """Count images that were received completely."""
        with self._lock:
            self.images[model] += images

    def draw(self, model: str, n: int, seed: int, **options: Any) -> list[dict[str, Any]]:
        """Draw images and return their descriptions, which contain PNGs."""
        body = PLAIN | {"model": model, "n": n, "seed": seed} | options
        reply = self.client.post("/v1/samples", json=body)
        return self._complete(model, reply)

    def complete(
        self, model: str, png: bytes, known_rows: int, n: int, seed: int
    ) -> list[dict[str, Any]]:
        """Complete a picture below ``known_rows``; return the images' descriptions."""
        form = PLAIN | {"model": model, "known_rows": known_rows, "n": n, "seed": seed}
        reply = self.client.post("/v1/completions", data=form, files={"image": png})
        return self._complete(model, reply)

    def score(self, model: str, pngs: Sequence[bytes]) -> list[float]:
        """Return the bits/dim of pictures without a label."""
        files = [("image", png) for png in pngs]
        reply = self.client.post("/v1/score", data={"model": model}, files=files)
        return [score["bits_per_dim"] for score in reply.raise_for_status().json()["data"]]

    def distribution(self, model: str, values: Sequence[int]) -> list[float]:
        """Return the probabilities of the value after these."""
        reply = self.client.post("/v1/distribution", json={"model": model, "values": values})
        probabilities: list[float] = reply.raise_for_status().json()["probabilities"]
        return probabilities

    def draw_array(self, model: str, n: int, seed: int) -> NDArray[np.uint8]:
        """Draw images and return their values, uint8 ``[n, H, W, C]``."""
        body = PLAIN | {"model": model, "n": n, "seed": seed}
        reply = self.client.post("/v1/samples", json=body, headers={"Accept": "application/x-npy"})
        images: NDArray[np.uint8] = np.load(io.BytesIO(reply.raise_for_status().content))
        self.count(model, len(images))
        return images

    def stream(self, model: str, n: int, seed: int, started: threading.Event) -> bytes:
        """Stream images pixel by pixel, and set ``started`` once the first pixels are here."""
        body = PLAIN | {"model": model, "n": n, "seed": seed}
        body |= {"stream": True, "granularity": "pixel"}
        received = bytearray()
        with self.client.stream("POST", "/v1/samples", json=body) as reply:
            reply.raise_for_status()
            for part in reply.iter_bytes():
                received += part
                if b"event: pixels" in part:
                    started.set()
        self.count(model, n)
        return bytes(received)

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples with these labels."""
        text = self.client.get("/metrics").raise_for_status().text
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def _complete(self, model: str, reply: httpx.Response) -> list[dict[str, Any]]:
        images: list[dict[str, Any]] = reply.raise_for_status().json()["images"]
        assert all(image["finish_reason"] == "length" for image in images)
        self.count(model, len(images))
        return images


def pixels_of(png: str | bytes) -> NDArray[np.uint8]:
    """Decode a PNG, which may be in base64, to uint8 ``[H, W, C]``."""
    content = base64.b64decode(png) if isinstance(png, str) else png
    with Image.open(io.BytesIO(content)) as picture:
        return np.atleast_3d(np.asarray(picture))


@contextmanager
def running_server(models: Sequence[str], options: Sequence[str]) -> Iterator[Served]:
    """Start a server and yield it when it is ready; its log is printed, without requests."""
    port = free_port()
    command = [
        sys.executable, "-m", "scanline.service", "serve", "--port", str(port),
        "--models", ",".join(models), *options,
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        lines: list[str] = []
        reader = threading.Thread(target=_read_log, args=(process, lines), daemon=True)
        reader.start()
        try:
            url = f"http://127.0.0.1:{port}"
            wait_ready(url, process)
            yield Served(url, process, lines)
        finally:
            process.kill()
            reader.join()


def _read_log(process: subprocess.Popen[bytes], lines: list[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if b" scanline.access: " not in line:
            lines.append(line.decode(errors="replace"))
            print(f"server| {lines[-1]}", end="", flush=True)
