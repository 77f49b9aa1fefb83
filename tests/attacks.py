"""Attacks on a server, and what they cost an innocent client: ``python -m tests.attacks``.

Starts a server of the shipped ``mnist`` on the loopback (or takes ``--url`` and ``--pid``), lets
each attack run on a few connections, or on many, for a few seconds, and prints a table: how long
one-image requests waited meanwhile, and the server's memory.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import multiprocessing
import os
import signal
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path

import httpx
from PIL import Image

from tests.processes import free_port, wait_ready

CONNECTIONS = 8
SHIPPED = ("--models", "mnist")
PATIENCE = 2.0  # seconds that an attacker waits for a reply before it leaves


@dataclass(frozen=True)
class Attack:
    """What one connection sends: ``first``, then ``again`` up to ``most`` bytes in all.

    Then it reads for ``patience`` seconds, or until the server closes, and leaves. So many
    ``connections`` do so at once.
    """

    first: bytes
    again: bytes = b""
    most: int = 0
    patience: float = PATIENCE
    connections: int = CONNECTIONS


def _json(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


def _form(path: str, pictures: list[bytes], **fields: object) -> bytes:
    files = [("image", ("a", data, "image/png")) for data in pictures]
    data = {name: str(value) for name, value in fields.items()}
    request = httpx.Request("POST", f"http://x{path}", data=data, files=files)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    for name in ("Content-Type", "Content-Length"):
        head += f"{name}: {request.headers[name]}\r\n"
    return head.encode() + b"\r\n" + request.read()


def _picture(side: int, kind: str = "PNG", mode: str = "L", **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (side, side)).save(buffer, kind, **options)
    return buffer.getvalue()


def png_chunk(kind: bytes, data: bytes) -> bytes:
    """Write a chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _before_the_pixels(chunks: bytes) -> bytes:
    """Give a PNG with more chunks."""
    data = _picture(28)
    end = data.index(b"IDAT") - 4
    return data[:end] + chunks + data[end:]


def _exif(size: int) -> bytes:
    """Give Exif that lays a picture on its side, and has fractions without end."""
    entries = ((0x0112, 3, 1, 6), (0x9999, 5, size // 8, 38))  # behind which the fractions stand
    head = b"II*\0" + struct.pack("<IH", 8, 2)
    tags = b"".join(struct.pack("<HHII", *entry) for entry in entries) + bytes(4)
    return head + tags + struct.pack("<II", 1, 3) * (size // 8)


def _small_beside_large() -> bytes:
    """Ask for all images that one may, and go on; then have the last row of one completed."""
    large = _json("/v1/samples", b'{"n": 256, "label": "random"}')
    large = large.replace(b"Connection: close", b"Prefer: respond-async", 1)
    return large + _form("/v1/completions", [_picture(28)], known_rows=27)


def _all_but_a_row() -> bytes:
    """Give a form of 64 images that are there but for their last row, each with a twin."""
    fields = {"n": 64, "known_rows": 27, "label": 1, "guidance": 2}
    return _form("/v1/completions", [_picture(28)], **fields)


def _plain_ppm(side: int) -> bytes:
    return b"P3\n%d %d\n255\n" % (side, side) + b"0 0 0\n" * side**2


def _many_scans() -> bytes:
    """Give a JPEG whose last scan comes thousands of times, each over all of it."""
    data = _picture(3800, "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * 3000 + data[-2:]


def _many_chunks() -> bytes:
    """Give a PNG of a great many empty chunks, which Pillow reads in Python."""
    return _before_the_pixels(png_chunk(b"teSt", b"") * 500_000)


def _many_segments() -> bytes:
    """Give a JPEG of a great many parts of Exif, each of which Pillow adds to all before it."""
    data, large = _picture(28, "JPEG"), b"\xff\xe1\xff\xf0Exif\0\0" + bytes(65_512)
    return data[:2] + large * 80 + b"\xff\xe1\0\x08Exif\0\0" * 100_000 + data[2:]


def _in_punycode() -> bytes:
    """Give a form whose text Python would decode for minutes."""
    form = _form("/v1/completions", [_picture(28)], seed="a" * 900_000 + "-" + "b" * 99_000)
    return form.replace(b"multipart/form-data;", b"multipart/form-data; charset=punycode;", 1)


def _stream(images: int) -> bytes:
    body = {"n": images, "stream": True, "granularity": "pixel"}
    return _json("/v1/samples", json.dumps(body).encode())


CHUNKED = (
    b"POST /v1/samples HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
MOST = 50_000_000

ATTACKS: dict[str, Callable[[], Attack]] = {
    "endless header lines": lambda: Attack(
        b"GET / HTTP/1.1\r\nHost: x\r\n", b"X-A: b\r\n" * 8000, MOST
    ),
    "one endless header": lambda: Attack(b"GET / HTTP/1.1\r\nX-A: ", b"b" * 65536, MOST),
    "endless URL": lambda: Attack(b"GET /", b"b" * 65536, MOST),
    "endless trailers": lambda: Attack(CHUNKED + b"0\r\n", b"X-A: b\r\n" * 8000, MOST),
    "endless chunk extension": lambda: Attack(CHUNKED + b"1;a=", b"b" * 65536, MOST),
    "pipelined requests": lambda: Attack(
        b"", b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n" * 1000, MOST, 0.1
    ),
    "JSON, 590 KB of wrong values": lambda: Attack(
        _json("/v1/distribution", b'{"values":[' + b"-1," * 196_000 + b"-1]}")
    ),
    "JSON, 9.5 MB of unknown keys": lambda: Attack(_json("/v1/samples", _keys(9_500_000))),
    "JSON, 0.9 MB of unknown keys": lambda: Attack(_json("/v1/samples", _keys(900_000))),
    "JSON, 0.9 MB of empty lists": lambda: Attack(
        _json("/v1/distribution", b'{"values":[' + b"[]," * 300_000 + b"[]]}")
    ),
    "PNG of 4096² pixels, cover": lambda: Attack(
        _form("/v1/completions", [_picture(4096)], fit="cover", known_rows=1)
    ),
    "PNG of 2000² pixels, cover": lambda: Attack(
        _form("/v1/completions", [_picture(2000, mode="RGBA")], fit="cover", known_rows=1)
    ),
    "PNG of 4096² pixels, exact": lambda: Attack(
        _form("/v1/completions", [_picture(4096)], known_rows=1)
    ),
    "JPEG of 4000² pixels, 3,000 scans": lambda: Attack(
        _form("/v1/completions", [_many_scans()], fit="cover", known_rows=1)
    ),
    "PNG of 500,000 chunks": lambda: Attack(
        _form("/v1/completions", [_many_chunks()], fit="cover", known_rows=1)
    ),
    "plain PPM of 7 MB": lambda: Attack(
        _form("/v1/completions", [_plain_ppm(1080)], fit="cover", known_rows=1)
    ),
    "plain PPM of 4 MB of comments": lambda: Attack(
        _form("/v1/completions", [_plain_ppm(28) + b"#\n" * 2_000_000], known_rows=1)
    ),
    "JPEG of 100,000 segments": lambda: Attack(
        _form("/v1/completions", [_many_segments()], fit="cover", known_rows=1)
    ),
    "PNG of 9,000 colour profiles": lambda: Attack(
        _form("/v1/completions", [_before_the_pixels(_profile() * 9000)], known_rows=1)
    ),
    "PNG of 9 MB of Exif": lambda: Attack(
        _form("/v1/completions", [_before_the_pixels(png_chunk(b"eXIf", _exif(9_000_000)))])
    ),
    "JPEG of 9 MB of padding": lambda: Attack(
        _form("/v1/completions", [b"\xff\xd8" + b"\xff" * 9_000_000 + _picture(28, "JPEG")[2:]])
    ),
    "PGM of 9 MB of blanks": lambda: Attack(
        _form("/v1/completions", [b"P5 28 28" + b" " * 9_000_000 + b"255 " + bytes(784)])
    ),
    "a class of 400,000 accents": lambda: Attack(
        _form(
            "/v1/completions", [_picture(28)], label="a" + "\u0345" * 200_000 + "\u0334" * 200_000
        )
    ),
    "form in Punycode": lambda: Attack(_in_punycode()),
    "score of 24 PNG of 2000² pixels, left after 1 s": lambda: Attack(
        _form("/v1/score", [_picture(2000, mode="RGBA")] * 24, fit="cover"), patience=1.0
    ),
    "200 completions of a PNG of 2000² pixels": lambda: Attack(
        _form("/v1/completions", [_picture(2000)], fit="cover", known_rows=1),
        patience=60,
        connections=200,
    ),
    "40 scores of 100 pictures": lambda: Attack(
        _form("/v1/score", [_picture(28)] * 100), patience=60, connections=40
    ),
    "score of 256 pictures, left after 1 s": lambda: Attack(
        _form("/v1/score", [_picture(28)] * 256), patience=1.0
    ),
    "64 images of 2044² pixels": lambda: Attack(_enlarged(64, 2044)),
    "4 images of 2044² pixels": lambda: Attack(_enlarged(4, 2044)),
    "256 images of 280² pixels": lambda: Attack(_enlarged(256, 280)),
    "64 images but for their last row": lambda: Attack(_all_but_a_row(), patience=60),
    "the last row of an image, beside 256 images": lambda: Attack(
        _small_beside_large(), patience=60, connections=12
    ),
    "half a head": lambda: Attack(b"GET / HTTP/1.1\r\nHost", patience=60),
    "half a body": lambda: Attack(_json("/v1/samples", b"{" * 100)[:-1], patience=60),
    "streams of 64 images, unread": lambda: Attack(_stream(64), patience=0),
    "1,000 streams of 3 images, read": lambda: Attack(_stream(3), patience=60, connections=1000),
}


def _profile() -> bytes:
    return png_chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(1_000_000)))


def _keys(size: int) -> bytes:
    return b"{" + b",".join(b'"%07d":0' % j for j in range(size // 12)) + b"}"


def _enlarged(n: int, side: int) -> bytes:
    body = {"prompt": "", "n": n, "size": f"{side}x{side}", "output_format": "webp"}
    return _json("/v1/images/generations", json.dumps(body).encode())


def shoot(address: tuple[str, int], attack: Attack, stop: Event) -> bytes:
    """Attack once over one connection; gives what came back, if anything."""
    received = b""
    here = sys.platform == "linux" and address[0].startswith("127.")
    mine = ("127.0.0.2", 0) if here else None  # a caller of its own
    with (
        contextlib.suppress(OSError),
        socket.create_connection(address, timeout=5, source_address=mine) as connection,
    ):
        with contextlib.suppress(OSError):
            connection.sendall(attack.first)
            for _ in range(attack.most // max(len(attack.again), 1)):
                if stop.is_set():
                    return received
                connection.sendall(attack.again)
        until = time.monotonic() + attack.patience
        connection.settimeout(0.05)
        while time.monotonic() < until and not stop.is_set():
            with contextlib.suppress(TimeoutError):
                if not (part := connection.recv(65536)):
                    break
                received = (received + part)[:4096]
    return received


def keep_attacking(
    address: tuple[str, int], name: str, connections: int | None, stop: Event
) -> None:
    """Attack again and again over so many connections at once, or the attack's, until ``stop``."""
    os.nice(10)  # attackers have machines of their own: what is measured is the server's share
    attack = ATTACKS[name]()

    def go_on() -> None:
        while not stop.is_set():
            shoot(address, attack, stop)

    count = connections or attack.connections
    threads = [threading.Thread(target=go_on) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextlib.contextmanager
def under_attack(
    address: tuple[str, int], name: str, connections: int | None = None
) -> Iterator[None]:
    """Let an attack run, from a process of its own, inside the block."""
    spawn = multiprocessing.get_context("spawn")
    stop = spawn.Event()
    process = spawn.Process(target=keep_attacking, args=(address, name, connections, stop))
    process.start()
    try:
        yield
    finally:
        stop.set()
        process.join()


def waits_of_innocent(url: str, seconds: float, body: dict[str, object]) -> list[float]:
    """Ask for one image again and again, over a new connection each; seconds that each took.

    Every other one is the rest of a picture.
    """
    waits: list[float] = []
    picture = _picture(28)
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        began = time.monotonic()
        try:
            if len(waits) % 2:
                reply = httpx.post(
                    f"{url}/v1/completions", files={"image": picture},
                    data=body | {"known_rows": 14}, timeout=60,
                )  # fmt: skip
            else:
                reply = httpx.post(f"{url}/v1/samples", json=body, timeout=60)
            waits.append(time.monotonic() - began if reply.status_code == 200 else math.inf)
        except httpx.TransportError:
            waits.append(math.inf)
        time.sleep(0.02)
    return waits


def memory(pid: int) -> float:
    """Give the memory now, in MB, of a process and of all that it began."""
    used, parents = dict[int, float](), dict[int, int]()
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            said = dict(line.split(":", 1) for line in status.read_text().splitlines())
            used[int(said["Pid"])] = float(said.get("VmRSS", "0").split()[0]) / 1000
            parents[int(said["Pid"])] = int(said["PPid"])
    family = {pid}
    while more := {one for one, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(used[one] for one in family)


@contextlib.contextmanager
def own_server(*options: str) -> Iterator[tuple[str, int]]:
    """Serve the shipped mnist, or as told, in a process of its own: its address and number."""
    port = free_port()
    command = [sys.executable, "-m", "scanline.service", "serve", "--port", str(port)]
    environment = os.environ | {"SCANLINE_LOG_LEVEL": "error"}
    with subprocess.Popen([*command, *(options or SHIPPED)], env=environment) as process:
        url = f"http://127.0.0.1:{port}"
        try:
            wait_ready(url, process)
            yield url, process.pid
        finally:
            process.send_signal(signal.SIGTERM)


def report(url: str, pid: int, names: list[str], seconds: float) -> None:
    """Print a line for each attack: median and longest wait, refusals, memory after it."""
    address = httpx.URL(url)
    where = (address.host, address.port or 80)

    def line(name: str, waits: list[float]) -> None:
        middle, longest = statistics.median(waits), max(waits)
        print(f"| {name} | {middle:.3f} | {longest:.3f} | {len(waits)} | {memory(pid):,.0f} |")

    print("| attack | median wait, s | longest wait, s | requests | memory, MB |")
    print("|---|---|---|---|---|", flush=True)
    waits_of_innocent(url, 1, {"seed": 1})
    line("none", waits_of_innocent(url, seconds, {"seed": 1}))
    for name in names:
        with under_attack(where, name):
            time.sleep(1)  # to begin
            line(name, waits_of_innocent(url, seconds, {"seed": 1}))
        sys.stdout.flush()
        time.sleep(1)


def main() -> None:
    """Attack as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a server that runs already")
    parser.add_argument("--pid", type=int, help="its process")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("names", nargs="*", help="some attacks only")
    given = parser.parse_args()
    names = given.names or list(ATTACKS)
    if given.url:
        report(given.url, given.pid, names, given.seconds)
    else:
        with own_server() as (url, pid):
            report(url, pid, names, given.seconds)


if __name__ == "__main__":
    main()
