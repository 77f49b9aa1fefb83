"""Requests and pictures that are costly to take in."""

from __future__ import annotations

import io
import json
import struct
import zlib

import httpx
from PIL import Image

from tests.png import png_chunk


def post(path: str, body: bytes) -> bytes:
    """Give a request of JSON, or of what is not."""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


def form(path: str, pictures: list[bytes], **fields: object) -> bytes:
    """Give a request of pictures and fields as a form."""
    files = [("image", ("a", data, "image/png")) for data in pictures]
    data = {name: str(value) for name, value in fields.items()}
    request = httpx.Request("POST", f"http://x{path}", data=data, files=files)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    for name in ("Content-Type", "Content-Length"):
        head += f"{name}: {request.headers[name]}\r\n"
    return head.encode() + b"\r\n" + request.read()


def picture(side: int, kind: str = "PNG", mode: str = "L", **options: object) -> bytes:
    """Give a black picture, as its file has it."""
    buffer = io.BytesIO()
    Image.new(mode, (side, side)).save(buffer, kind, **options)
    return buffer.getvalue()


def with_extra_chunks(chunks: bytes) -> bytes:
    """Give a PNG with more chunks."""
    data = picture(28)
    end = data.index(b"IDAT") - 4
    return data[:end] + chunks + data[end:]


def exif(size: int) -> bytes:
    """Give Exif that lays a picture on its side, and has fractions without end."""
    entries = ((0x0112, 3, 1, 6), (0x9999, 5, size // 8, 38))  # behind which the fractions stand
    head = b"II*\0" + struct.pack("<IH", 8, 2)
    tags = b"".join(struct.pack("<HHII", *entry) for entry in entries) + bytes(4)
    return head + tags + struct.pack("<II", 1, 3) * (size // 8)


def small_request_after_large() -> bytes:
    """Ask for all images that one may, and go on; then have the last row of one completed."""
    large = post("/v1/samples", b'{"n": 256, "label": "random"}')
    large = large.replace(b"Connection: close", b"Prefer: respond-async", 1)
    return large + form("/v1/completions", [picture(28)], known_rows=27)


def last_rows_only() -> bytes:
    """Give a form of 64 images that are there but for their last row, each with a twin."""
    fields = {"n": 64, "known_rows": 27, "label": 1, "guidance": 2}
    return form("/v1/completions", [picture(28)], **fields)


def plain_ppm(side: int) -> bytes:
    """Give a picture whose numbers are written out."""
    return b"P3\n%d %d\n255\n" % (side, side) + b"0 0 0\n" * side**2


def many_scans() -> bytes:
    """Give a JPEG whose last scan comes thousands of times, each over all of it."""
    data = picture(3800, "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * 3000 + data[-2:]


def many_chunks() -> bytes:
    """Give a PNG of a great many empty chunks, which Pillow reads in Python."""
    return with_extra_chunks(png_chunk(b"teSt", b"") * 500_000)


def many_segments() -> bytes:
    """Give a JPEG of a great many parts of Exif, each of which Pillow adds to all before it."""
    data, large = picture(28, "JPEG"), b"\xff\xe1\xff\xf0Exif\0\0" + bytes(65_512)
    return data[:2] + large * 80 + b"\xff\xe1\0\x08Exif\0\0" * 100_000 + data[2:]


def in_punycode() -> bytes:
    """Give a form whose text Python would decode for minutes."""
    plain = form("/v1/completions", [picture(28)], seed="a" * 900_000 + "-" + "b" * 99_000)
    return plain.replace(b"multipart/form-data;", b"multipart/form-data; charset=punycode;", 1)


def stream(images: int) -> bytes:
    """Ask for every pixel of images as an event."""
    body = {"n": images, "stream": True, "granularity": "pixel"}
    return post("/v1/samples", json.dumps(body).encode())


def profile() -> bytes:
    """Give a colour profile that is a thousand times as large as it lies there."""
    return png_chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(1_000_000)))


def unknown_keys(size: int) -> bytes:
    """Give an object of so many bytes of keys that nobody knows."""
    return b"{" + b",".join(b'"%07d":0' % j for j in range(size // 12)) + b"}"


def enlarged(n: int, side: int) -> bytes:
    """Ask for images so large."""
    body = {"prompt": "", "n": n, "size": f"{side}x{side}", "output_format": "webp"}
    return post("/v1/images/generations", json.dumps(body).encode())
