"""Soak test with many images: ``python -m tests.robustness.soak 100000 --seconds 3600``.

Starts a server with a small random network on the loopback interface. A few clients request the
given number of images, spread evenly over the given time: arrays, PNGs, ZIPs, streams and
completions in turn. Prints the server's memory and open files ten times. The exit status is 1 if a
reply was missing or not 200, or if memory grew by more than 5 % after the first tenth. Further
options, such as ``--cluster``, are passed on to the server.
"""

from __future__ import annotations

import argparse
import io
import itertools
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import torch
from PIL import Image

from scanline.model.checkpoint import save_checkpoint
from scanline.model.config import ModelConfig
from tests.conftest import random_network
from tests.robustness.fuzz import files, held
from tests.server_processes import memory, server_process

CONFIG = ModelConfig(
    height=28, width=28, n_layers=1, n_heads=2, d_model=32, d_ff=64, classes=("zero", "one")
)
GROWTH = 1.05


def _picture() -> bytes:
    """Return a grey PNG to complete."""
    packed = io.BytesIO()
    Image.linear_gradient("L").resize((28, 28)).save(packed, "PNG")
    return packed.getvalue()


def ask(client: httpx.Client, turn: int, picture: bytes) -> tuple[int, httpx.Response]:
    """Send a request of kind `turn % 5`; return its number of images and the reply."""
    path = "/v1/samples"
    match turn % 5:
        case 0:
            body: dict[str, object] = {"n": 64, "seed": turn}
            return 64, client.post(path, json=body, headers={"Accept": "application/x-npy"})
        case 1:
            return 1, client.post(path, json={"output": "png", "label": "random"})
        case 2:
            return 16, client.post(path, json={"n": 16, "label": "one"})
        case 3:
            body = {"n": 8, "stream": True, "granularity": "row"}
            return 8, client.post(path, json=body)
        case _:
            fields = {"known_rows": "14", "n": "4"}
            return 4, client.post("/v1/completions", data=fields, files={"image": picture})


class Soak:
    """Clients that draw a number of images together, with counts of images and failures."""

    def __init__(self, url: str, images: int, seconds: float) -> None:
        self.url, self.images, self.seconds = url, images, seconds
        self.drawn = 0
        self.bad: list[str] = []
        self._turns: Iterator[int] = itertools.count()
        self._lock = threading.Lock()
        self._began = time.monotonic()

    def client(self) -> None:
        """Request images at the common pace until all have been drawn."""
        picture = _picture()
        with httpx.Client(base_url=self.url, timeout=120) as client:
            while self.drawn < self.images:
                with self._lock:
                    turn = next(self._turns)
                count, reply = ask(client, turn, picture)
                with self._lock:
                    self.drawn += count
                    if reply.status_code != 200:
                        self.bad.append(f"request {turn}: {reply.status_code} {reply.text[:200]}")
                due = self._began + self.seconds * self.drawn / self.images
                time.sleep(max(0.0, due - time.monotonic()))


def run(url: str, pid: int, images: int, seconds: float, connections: int) -> int:
    """Draw all images and print a report; return the number of failures."""
    soak = Soak(url, images, seconds)
    threads = [threading.Thread(target=soak.client) for _ in range(connections)]
    for thread in threads:
        thread.start()
    print("| images | memory, MB | open files |\n|---|---|---|", flush=True)
    settled = 0.0
    for tenth in range(1, 11):
        while soak.drawn < images * tenth / 10 and any(thread.is_alive() for thread in threads):
            time.sleep(0.2)
        settled = settled or memory(pid)
        print(f"| {soak.drawn:,} | {memory(pid):.0f} | {files(pid)} |", flush=True)
    for thread in threads:
        thread.join()
    time.sleep(1)
    bad = soak.bad
    if soak.drawn < images:  # a client failed
        bad.append(f"only {soak.drawn:,} of {images:,} images came")
    if left := held(url):
        bad.append(f"{left:.0f} slots, waiting images and streams are left")
    if memory(pid) > settled * GROWTH:
        bad.append(f"memory grew from {settled:.0f} to {memory(pid):.0f} MB")
    print(*bad[:20], sep="\n")
    return len(bad)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("images", type=int, nargs="?", default=5000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--connections", type=int, default=4)
    given, options = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        network = random_network(CONFIG, dtype=torch.float32)
        save_checkpoint(Path(folder) / "small.safetensors", network, {})
        with server_process("--weights", folder, *options) as (url, pid):
            wrong = run(url, pid, given.images, given.seconds, given.connections)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
