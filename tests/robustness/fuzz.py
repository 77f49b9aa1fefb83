"""Fuzzing of a server with random requests: ``python -m tests.robustness.fuzz 50000``.

Starts a server with the shipped ``mnist`` on the loopback interface, sends the given number of
random requests, each generated from a seed, to all routes, and prints the replies' statuses. Then
it disconnects a thousand clients during their requests and checks that all slots are free again.
The exit status is 1 if a reply was a 5xx, a connection broke without a reply, or a slot was not
freed. Further options, such as ``--cluster --max-replicas 2``, are passed on to the server. Memory
is that of all its processes.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import random
import re
import socket
import struct
import sys
import threading
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from PIL import Image

from scanline.model.checkpoint import load_by_name
from tests.server_processes import MNIST_OPTIONS, memory, server_process

WORDS = (
    "", "7", "seven", "random", "draw a 7", "mnist", "none", "true", "null", "-1", "0", "1", "1.5",
    "1e999", "nan", "256x256", "28x28", "99999x1", "auto", "png", "webp", "values", "row", "pixel",
    "exact", "cover", "\0", "\ud800", "é", "𝄞", "../x", "%00", "{}", "[]", "x" * 300, "9" * 40,
)  # fmt: skip
FIELDS = (
    "n", "seed", "label", "model", "temperature", "top_p", "guidance", "particles", "stream",
    "granularity", "output", "known_rows", "fit", "prompt", "size", "output_format", "background",
    "quality", "partial_images", "response_format", "values", "per_pixel", "images",
    "unconditional", "nonsense",
)  # fmt: skip
POSTS = (
    "/v1/samples", "/v1/completions", "/v1/score", "/v1/distribution", "/v1/distribution/pixel",
    "/v1/images/generations", "/v1/images/edits", "/v1/verify",
)  # fmt: skip
GETS = (
    "/v1/models", "/v1/models/mnist", "/v1/generations/x", "/v1/generations/x/events",
    "/v1/samples/mnist/7.png", "/v1/samples/mnist/x.png", "/readyz", "/metrics", "/openapi.json",
    "/", "/static/app.js", "/nothing", "/v1/samples/", "//", "/%2e%2e/",
)  # fmt: skip
OTHERS = ("POST", "GET", "DELETE", "PUT", "HEAD", "OPTIONS", "PATCH", "PURGE")
HEADERS = (
    "Accept", "Last-Event-ID", "Prefer", "Idempotency-Key", "Content-Type", "If-None-Match",
    "Authorization", "Content-Encoding", "Range",
)  # fmt: skip
HEADER_VALUES = (
    "image/png", "application/zip", "respond-async", "3", "*", "text/event-stream", "bytes=0-1",
    "é", "gzip", "a/b;q=x",
)  # fmt: skip


@functools.cache
def recipe_fields() -> dict[str, Any]:
    """Return a recipe of a sample of the shipped ``mnist``."""
    weights = load_by_name(name="mnist").digest
    return {
        "format": 1, "model": "mnist", "weights": weights, "precision": "int8", "arithmetic": 1,
        "seed": 1, "n": 1, "label": "7", "temperature": 1.0, "guidance": 1.0, "top_p": 1.0,
        "particles": 1, "given": None, "scale": 1, "version": "0.1.0",
    }  # fmt: skip


class Fuzz:
    """Generator of random requests."""

    def __init__(self, seed: int) -> None:
        self.pick = random.Random(seed)

    def value(self, depth: int = 0) -> Any:
        """Return a random value of any type."""
        pick = self.pick
        match pick.randrange(10 if depth < 3 else 7):
            case 0:
                return None
            case 1:
                return pick.random() < 0.5
            case 2 | 3:
                return pick.choice((0, 1, 2, 3, -1, 255, 2**31, 2**64 - 1, 2**64, 10**30))
            case 4:
                return pick.choice((0.0, 1.0, 0.5, -0.5, 1e-300, 1e308))
            case 5 | 6:
                return pick.choice(WORDS)
            case 7:
                return [self.value(depth + 1) for _ in range(pick.randrange(4))]
            case 8:
                return {
                    pick.choice(FIELDS): self.value(depth + 1) for _ in range(pick.randrange(3))
                }
        return [pick.randrange(-2, 258) for _ in range(pick.randrange(900))]

    def fields(self) -> dict[str, Any]:
        """Return random fields, mostly valid, so that some requests are accepted."""
        pick, sane = self.pick, {"n": 1, "seed": 1, "prompt": "7", "known_rows": 14, "fit": "cover"}
        some = {name: sane[name] for name in sane if pick.random() < 0.3}
        return some | {pick.choice(FIELDS): self.value() for _ in range(pick.randrange(4))}

    def picture(self) -> bytes:
        """Return an image, possibly truncated or damaged."""
        pick, buffer = self.pick, io.BytesIO()
        mode = pick.choice(("L", "LA", "RGB", "RGBA", "P", "1", "I;16"))
        size = (pick.choice((1, 27, 28, 56, 300)), pick.choice((1, 28, 28, 56, 300)))
        kind = (
            "PNG"
            if mode not in ("L", "RGB")
            else pick.choice(("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM"))
        )
        Image.new(mode, size).save(buffer, kind)
        data = bytearray(buffer.getvalue())
        if kind == "PNG" and pick.random() < 0.3:
            data[33:33] = self.recipe()
        for _ in range(pick.choice((0, 0, 1, 5))):
            data[pick.randrange(len(data))] = pick.randrange(256)
        return bytes(data[: pick.randrange(len(data))] if pick.random() < 0.1 else data)

    def recipe(self) -> bytes:
        """Return a text chunk with a recipe, possibly invalid."""
        fields = recipe_fields() | {"given": self.pick.choice((None, None, "0" * 64))}
        if self.pick.random() < 0.5:
            fields[self.pick.choice(list(fields))] = self.value()
        data = b"tEXtscanline\0" + json.dumps(fields).encode()
        return struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data))

    def request(self, client: httpx.Client) -> httpx.Request:
        """Return a random request."""
        pick = self.pick
        method = "POST" if pick.random() < 0.7 else "GET"
        path = pick.choice(POSTS if method == "POST" else GETS)
        if pick.random() < 0.1:
            method = pick.choice(OTHERS)
        if pick.random() < 0.2:
            path += "?" + "&".join(
                f"{pick.choice(FIELDS)}={pick.choice(('1', '7', 'x', '%00', ''))}"
                for _ in range(pick.randrange(1, 3))
            )
        headers = {}
        if pick.random() < 0.3:
            headers[pick.choice(HEADERS)] = pick.choice(HEADER_VALUES)
        content: dict[str, Any] = {}
        if method in ("POST", "PUT", "PATCH"):
            match pick.randrange(5):
                case 0 | 1:
                    text = json.dumps(self.fields()).encode()
                    headers.setdefault("Content-Type", "application/json")
                    content["content"] = text if pick.random() < 0.9 else text[: pick.randrange(9)]
                case 2 | 3:
                    names = ("image", "mask", "image[]", "source", "other")
                    files = [
                        (pick.choice(names) if pick.random() < 0.3 else "image", self.picture())
                        for _ in range(pick.choice((0, 1, 1, 1, 2)))
                    ]
                    data = {
                        name: str(value).encode("utf-8", "replace").decode()
                        for name, value in self.fields().items()
                    }
                    content = {"data": data, "files": files}
                case _:
                    content["content"] = pick.randbytes(pick.randrange(200))
        raw = {name.encode(): value.encode() for name, value in headers.items()}
        return client.build_request(method, path, headers=raw, **content)


def fuzz(url: str, first: int, last: int, seen: Counter[str], bad: list[str]) -> None:
    """Send the requests of these seeds; count statuses in ``seen``, add failures to ``bad``."""
    with httpx.Client(base_url=url, timeout=60) as client:
        for seed in range(first, last):
            maker = Fuzz(seed)
            request = maker.request(client)
            try:
                reply = client.send(request)
            except httpx.HTTPError as error:
                bad.append(f"seed {seed}: {request.method} {request.url}: {error!r}")
                continue
            seen[str(reply.status_code)] += 1
            if reply.status_code >= 500:
                bad.append(f"seed {seed}: {request.method} {request.url}: {reply.text[:200]}")


def drop(url: str, clients: int) -> None:
    """Send requests and disconnect at once or a moment later."""
    where = httpx.URL(url)
    bodies = ({"n": 8}, {"n": 8, "stream": True}, {"n": 2, "label": "7", "stream": True})
    for number in range(clients):
        body = json.dumps(bodies[number % 3]).encode()
        head = b"POST /v1/samples HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        with (
            contextlib.suppress(OSError),
            socket.create_connection((where.host, where.port or 80)) as connection,
        ):
            connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            connection.settimeout(0.001 * (number % 20) + 0.001)
            with contextlib.suppress(TimeoutError):
                connection.recv(1 + 512 * (number % 5))


def held(url: str) -> float:
    """Return the number of slots and images that the server holds."""
    text = httpx.get(f"{url}/metrics", timeout=60).text
    names = ("slots_in_use", "waiting_images", "open_streams")
    found = re.findall(
        rf"^scanline_(?:{'|'.join(names)})(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE
    )
    if not found:
        raise ValueError(f"the metrics have none of {', '.join(names)}")
    return sum(map(float, found))


def files(pid: int) -> int:
    """Return the number of a process's open files."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def run(url: str, pid: int, requests: int, connections: int, clients: int) -> int:
    """Fuzz, drop clients and print a report; return the number of failures."""
    seen: Counter[str] = Counter()
    bad: list[str] = []
    fuzz(url, 0, 200, Counter(), bad)  # warm-up
    before = (memory(pid), files(pid))
    share = -(-requests // connections)
    threads = [
        threading.Thread(target=fuzz, args=(url, 200 + j * share, 200 + (j + 1) * share, seen, bad))
        for j in range(connections)
    ]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    print("| requests | memory, MB |\n|---|---|", flush=True)
    for tenth in range(1, 11):
        while seen.total() < requests * tenth / 10 and any(one.is_alive() for one in threads):
            time.sleep(0.1)
        print(f"| {seen.total():,} | {memory(pid):.0f} |", flush=True)
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - began
    print(f"{seen.total():,} requests in {seconds:.0f} s: {dict(sorted(seen.items()))}")
    middle = memory(pid)
    drop(url, clients)
    ends = time.monotonic() + 60
    while (left := held(url)) and time.monotonic() < ends:
        time.sleep(0.2)
    print(f"{clients:,} clients dropped: {left:.0f} slots, waiting images and streams are left")
    print(f"memory, MB: {before[0]:.0f}, {middle:.0f} after the fuzz, {memory(pid):.0f} at the end")
    print(f"open files: {before[1]}, {files(pid)} at the end")
    for line in bad[:20]:
        print(line)
    if left:
        bad.append("something is held")
    return len(bad)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("requests", type=int, nargs="?", default=2000)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--clients", type=int, default=1000, help="to be dropped")
    given, options = parser.parse_known_args()
    with server_process(*MNIST_OPTIONS, *options) as (url, pid):
        wrong = run(url, pid, given.requests, given.connections, given.clients)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
