"""Catalog of attacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.png import png_chunk
from tests.robustness.attacks.payloads import (
    enlarged,
    exif,
    form,
    in_punycode,
    last_rows_only,
    many_chunks,
    many_scans,
    many_segments,
    picture,
    plain_ppm,
    post,
    profile,
    small_request_after_large,
    stream,
    unknown_keys,
    with_extra_chunks,
)

CONNECTIONS = 8
PATIENCE = 2.0  # seconds that an attacker waits for a reply


@dataclass(frozen=True)
class Attack:
    """Behaviour of an attack's connections.

    Each of ``connections`` at once sends ``first``, then ``again`` up to ``most`` bytes in all.
    Then it reads for ``patience`` seconds, or until the server closes the connection, and leaves.
    """

    first: bytes
    again: bytes = b""
    most: int = 0
    patience: float = PATIENCE
    connections: int = CONNECTIONS


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
        post("/v1/distribution", b'{"values":[' + b"-1," * 196_000 + b"-1]}")
    ),
    "JSON, 9.5 MB of unknown keys": lambda: Attack(post("/v1/samples", unknown_keys(9_500_000))),
    "JSON, 0.9 MB of unknown keys": lambda: Attack(post("/v1/samples", unknown_keys(900_000))),
    "JSON, 0.9 MB of empty lists": lambda: Attack(
        post("/v1/distribution", b'{"values":[' + b"[]," * 300_000 + b"[]]}")
    ),
    "PNG of 4096² pixels, cover": lambda: Attack(
        form("/v1/completions", [picture(4096)], fit="cover", known_rows=1)
    ),
    "PNG of 2000² pixels, cover": lambda: Attack(
        form("/v1/completions", [picture(2000, mode="RGBA")], fit="cover", known_rows=1)
    ),
    "PNG of 4096² pixels, exact": lambda: Attack(
        form("/v1/completions", [picture(4096)], known_rows=1)
    ),
    "JPEG of 4000² pixels, 3,000 scans": lambda: Attack(
        form("/v1/completions", [many_scans()], fit="cover", known_rows=1)
    ),
    "PNG of 500,000 chunks": lambda: Attack(
        form("/v1/completions", [many_chunks()], fit="cover", known_rows=1)
    ),
    "plain PPM of 7 MB": lambda: Attack(
        form("/v1/completions", [plain_ppm(1080)], fit="cover", known_rows=1)
    ),
    "plain PPM of 4 MB of comments": lambda: Attack(
        form("/v1/completions", [plain_ppm(28) + b"#\n" * 2_000_000], known_rows=1)
    ),
    "JPEG of 100,000 segments": lambda: Attack(
        form("/v1/completions", [many_segments()], fit="cover", known_rows=1)
    ),
    "PNG of 9,000 colour profiles": lambda: Attack(
        form("/v1/completions", [with_extra_chunks(profile() * 9000)], known_rows=1)
    ),
    "PNG of 9 MB of Exif": lambda: Attack(
        form("/v1/completions", [with_extra_chunks(png_chunk(b"eXIf", exif(9_000_000)))])
    ),
    "JPEG of 9 MB of padding": lambda: Attack(
        form("/v1/completions", [b"\xff\xd8" + b"\xff" * 9_000_000 + picture(28, "JPEG")[2:]])
    ),
    "PGM of 9 MB of blanks": lambda: Attack(
        form("/v1/completions", [b"P5 28 28" + b" " * 9_000_000 + b"255 " + bytes(784)])
    ),
    "a class of 400,000 accents": lambda: Attack(
        form("/v1/completions", [picture(28)], label="a" + "\u0345" * 200_000 + "\u0334" * 200_000)
    ),
    "form in Punycode": lambda: Attack(in_punycode()),
    "score of 24 PNG of 2000² pixels, left after 1 s": lambda: Attack(
        form("/v1/score", [picture(2000, mode="RGBA")] * 24, fit="cover"), patience=1.0
    ),
    "200 completions of a PNG of 2000² pixels": lambda: Attack(
        form("/v1/completions", [picture(2000)], fit="cover", known_rows=1),
        patience=60,
        connections=200,
    ),
    "40 scores of 100 pictures": lambda: Attack(
        form("/v1/score", [picture(28)] * 100), patience=60, connections=40
    ),
    "score of 256 pictures, left after 1 s": lambda: Attack(
        form("/v1/score", [picture(28)] * 256), patience=1.0
    ),
    "64 images of 2044² pixels": lambda: Attack(enlarged(64, 2044)),
    "4 images of 2044² pixels": lambda: Attack(enlarged(4, 2044)),
    "256 images of 280² pixels": lambda: Attack(enlarged(256, 280)),
    "64 images but for their last row": lambda: Attack(last_rows_only(), patience=60),
    "the last row of an image, during 256 images": lambda: Attack(
        small_request_after_large(), patience=60, connections=12
    ),
    "half a head": lambda: Attack(b"GET / HTTP/1.1\r\nHost", patience=60),
    "half a body": lambda: Attack(post("/v1/samples", b"{" * 100)[:-1], patience=60),
    "streams of 64 images, unread": lambda: Attack(stream(64), patience=0),
    "1,000 streams of 3 images, read": lambda: Attack(stream(3), patience=60, connections=1000),
}
