"""Requests and images that are costly to read."""

from __future__ import annotations

import io
import json
import struct
import zlib

import httpx
from PIL import Image

from tests.png import png_chunk


def post(path: str, body: bytes) -> bytes:
    """Return a POST request with a body that is declared as JSON."""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


def form(path: str, pictures: list[bytes], **fields: object) -> bytes:
    """Return a form with images and fields as a POST request."""
    files = [("image", ("a", data, "image/png")) for data in pictures]
    data = {name: str(value) for name, value in fields.items()}
    request = httpx.Request("POST", f"http://x{path}", data=data, files=files)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    for name in ("Content-Type", "Content-Length"):
        head += f"{name}: {request.headers[name]}\r\n"
    return head.encode() + b"\r\n" + request.read()


def picture(side: int, kind: str = "PNG", mode: str = "L", **options: object) -> bytes:
    """Return a black image as a file."""
    buffer = io.BytesIO()
    Image.new(mode, (side, side)).save(buffer, kind, **options)
    return buffer.getvalue()


def with_extra_chunks(chunks: bytes) -> bytes:
    """Return a PNG with these chunks before the pixels."""
    data = picture(28)
    end = data.index(b"IDAT") - 4
    return data[:end] + chunks + data[end:]


def exif(size: int) -> bytes:
    """Return Exif data with a rotation and ``size`` bytes of fractions."""
    entries = ((0x0112, 3, 1, 6), (0x9999, 5, size // 8, 38))  # the fractions start at byte 38
    head = b"II*\0" + struct.pack("<IH", 8, 2)
    tags = b"".join(struct.pack("<HHII", *entry) for entry in entries) + bytes(4)
    return head + tags + struct.pack("<II", 1, 3) * (size // 8)


def small_request_after_large() -> bytes:
    """Return a request for 256 images in the background, then one for a single row."""
    large = post("/v1/samples", b'{"n": 256, "label": "random"}')
    large = large.replace(b"Connection: close", b"Prefer: respond-async", 1)
    return large + form("/v1/completions", [picture(28)], known_rows=27)


def last_rows_only() -> bytes:
    """Return a guided completion of the last row of 64 images."""
    fields = {"n": 64, "known_rows": 27, "label": 1, "guidance": 2}
    return form("/v1/completions", [picture(28)], **fields)


def plain_ppm(side: int) -> bytes:
    """Return a plain PPM, whose values are text."""
    return b"P3\n%d %d\n255\n" % (side, side) + b"0 0 0\n" * side**2


def many_scans() -> bytes:
    """Return a JPEG that repeats its last scan 3,000 times."""
    data = picture(3800, "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * 3000 + data[-2:]


def many_chunks() -> bytes:
    """Return a PNG with 500,000 empty chunks, which Pillow reads in Python."""
    return with_extra_chunks(png_chunk(b"teSt", b"") * 500_000)


def many_segments() -> bytes:
    """Return a JPEG with 100,000 Exif segments, which Pillow joins one by one."""
    data, large = picture(28, "JPEG"), b"\xff\xe1\xff\xf0Exif\0\0" + bytes(65_512)
    return data[:2] + large * 80 + b"\xff\xe1\0\x08Exif\0\0" * 100_000 + data[2:]


def in_punycode() -> bytes:
    """Return a form in Punycode, which Python takes minutes to decode."""
    plain = form("/v1/completions", [picture(28)], seed="a" * 900_000 + "-" + "b" * 99_000)
    return plain.replace(b"multipart/form-data;", b"multipart/form-data; charset=punycode;", 1)


def stream(images: int) -> bytes:
    """Return a request that streams every pixel of ``images`` images."""
    body = {"n": images, "stream": True, "granularity": "pixel"}
    return post("/v1/samples", json.dumps(body).encode())


def profile() -> bytes:
    """Return a colour profile that expands a thousandfold."""
    return png_chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(1_000_000)))


def unknown_keys(size: int) -> bytes:
    """Return ``size`` bytes of JSON with unknown keys."""
    return b"{" + b",".join(b'"%07d":0' % j for j in range(size // 12)) + b"}"


def enlarged(n: int, side: int) -> bytes:
    """Return a request for ``n`` enlarged images."""
    body = {"prompt": "", "n": n, "size": f"{side}x{side}", "output_format": "webp"}
    return post("/v1/images/generations", json.dumps(body).encode())
