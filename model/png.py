"""Chunks of PNG files."""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO

SIGNATURE = b"\x89PNG\r\n\x1a\n"

_TYPE = re.compile(rb"[A-Za-z]{4}")
# The ancillary chunks that decide what an image looks like here: transparency and orientation.
_USED = (b"tRNS", b"eXIf")


def png_chunk(kind: bytes, data: bytes) -> bytes:
    """Return a chunk: its length, type, data and checksum."""
    return struct.pack(f">I4s{len(data)}sI", len(data), kind, data, zlib.crc32(kind + data))


def iterate_chunks(png: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield the type of each complete chunk, and the offsets of its data's start and end.

    Stops after ``IEND``, and at the first chunk that is cut off or has an invalid type.
    """
    at = len(SIGNATURE)
    while at + 12 <= len(png):
        kind, start = png[at + 4 : at + 8], at + 8
        end = start + int.from_bytes(png[at : at + 4])
        if end + 4 > len(png) or not _TYPE.fullmatch(kind):
            return
        yield kind, start, end
        if kind == b"IEND":
            return
        at = end + 4


def without_unused_chunks(file: BinaryIO) -> BinaryIO:
    """Return an image file without the chunks of a PNG that do not matter for its pixels.

    Pillow would unpack texts and colour profiles, and refuse an image if one of them is larger
    than 1 MB, damaged or too short. Orientation comes from the chunk ``eXIf`` alone, as in
    browsers. A file of another format is returned as it is.
    """
    file.seek(0)
    if file.read(len(SIGNATURE)) != SIGNATURE:
        file.seek(0)
        return file
    file.seek(0)
    png = file.read()
    kept, at = [], 0
    for kind, start, end in iterate_chunks(png):
        if kind[:1].islower() and kind not in _USED:
            kept.append(png[at : start - 8])
            at = end + 4
    return io.BytesIO(b"".join((*kept, png[at:])))
