"""Cheap HTTP clients: one blocking socket each, and no parsing of replies."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from queue import SimpleQueue
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

TIMEOUT = 600.0  # seconds without a byte
# Neutral sampling options, which the decoders are timed with; a model's defaults may cost more.
PLAIN = {"temperature": 1.0, "top_p": 1.0, "guidance": 1.0}


@dataclass(frozen=True)
class Workload:
    """Load of the clients: each repeats ``POST /v1/samples`` for ``n`` images.

    Attributes:
        port: Port of the server.
        accept: Media type of the replies.
        body: JSON body without ``n``.
        n: Images per request.
        clients: Number of clients.
    """

    port: int
    accept: str
    body: dict[str, Any]
    n: int
    clients: int


def send_request(port: int, accept: str, body: dict[str, Any]) -> bytes:
    """Send one request and return the whole reply, head and body."""
    content = json.dumps(body).encode()
    head = (
        "POST /v1/samples HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Accept: {accept}\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), TIMEOUT) as connection:
        connection.sendall(head.encode() + content)
        reply = bytearray()
        while part := connection.recv(1 << 18):
            reply += part
    if not reply.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(f"the server replied {bytes(reply[:500])!r}")
    return bytes(reply)


def _run_clients(workload: Workload) -> None:
    """Run all clients in parallel until one fails, and raise its error.

    The sizes of their first requests differ, which keeps them out of step. Otherwise all would
    wait for new requests at the same time.
    """
    failures: SimpleQueue[Exception] = SimpleQueue()

    def client(number: int) -> None:
        n = max(1, workload.n * (number + 1) // workload.clients)
        try:
            while True:
                send_request(workload.port, workload.accept, workload.body | {"n": n})
                n = workload.n
        except Exception as error:
            failures.put(error)

    for number in range(workload.clients):
        threading.Thread(target=client, args=(number,), daemon=True).start()
    raise failures.get()


def _metric(port: int, *names: str) -> float:
    text = httpx.get(f"http://127.0.0.1:{port}/metrics").raise_for_status().text
    families = (family for family in text_string_to_metric_families(text) if family.name in names)
    return sum(sample.value for family in families for sample in family.samples)


def pixels_drawn(port: int) -> float:
    """Return the number of pixels that a server has sampled, from its metrics."""
    return _metric(port, "scanline_pixels")


@contextmanager
def running_clients(workload: Workload, pixels: int) -> Iterator[Callable[[float], None]]:
    """Run clients in another process inside the block.

    The block begins when the first round of requests has been sampled, so that the load is steady,
    and ends when no image of theirs is left in the server.

    Args:
        workload: Load of the clients.
        pixels: Pixels per image.

    Yields:
        A function that waits for a number of seconds and raises ``RuntimeError`` if a client fails.
    """
    command = [sys.executable, "-m", __name__, json.dumps(asdict(workload))]
    with subprocess.Popen(command) as process:

        def wait(seconds: float) -> None:
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                return
            raise RuntimeError("a client failed")

        try:
            warm = pixels_drawn(workload.port) + workload.clients * workload.n * pixels
            while pixels_drawn(workload.port) < warm:
                wait(0.05)
            yield wait
        finally:
            process.kill()
            # The server finishes aborted streams, which could still be read later.
            while _metric(workload.port, "scanline_running_images", "scanline_waiting_images"):
                time.sleep(0.05)


if __name__ == "__main__":
    _run_clients(Workload(**json.loads(sys.argv[1])))
