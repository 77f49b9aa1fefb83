"""Limits on the cost of decoding an uploaded image.

An image that exceeds a limit is refused by its headers, before any pixel is decoded.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import BinaryIO

from PIL import Image, ImageFile
from PIL.JpegImagePlugin import MARKER, JpegImageFile

from scanline.model import images
from scanline.model.images import ImageError, open_image
from scanline.model.png import SIGNATURE as PNG
from scanline.model.png import iterate_chunks

MAX_PIXELS = 2**22  # 2048 × 2048, the largest image in a reply, after scaling down a JPEG
MAX_REDUCED_PIXELS = 2**24  # of a JPEG that is scaled down while it is decoded
MAX_PARTS = 10_000  # segments, chunks or blocks in a file; encoders write some hundreds
MAX_PADDING_BYTES = 10_000  # meaningless bytes before the pixels, which Pillow reads in Python
MAX_EXIF_BYTES = 2**18  # read in Python; cameras write some thousand bytes
# Lower limits for the parts that cost most, by JPEG marker or PNG chunk type.
PART_LIMITS: dict[int | bytes, tuple[str, int]] = {
    0xDA: ("scans", 64),  # each covers the whole image
    0xE1: ("segments of Exif or XMP", 256),  # for each, Pillow copies all previous ones
    b"eXIf": ("chunks of Exif", 4),
}
MIN_GIF_BLOCK_BYTES = 64  # average size of a GIF's blocks; encoders fill 255 bytes
GIF, JPEG = b"GIF8", b"\xff\xd8"
MAX_PYTHON_DECODED_PIXELS = 2**16  # in formats that Pillow decodes in Python, 1,000 × slower
MAX_COMMENTS = 1000  # in a plain PPM; for each, Pillow moves everything that follows
# TIFF is excluded: a small file may have a tile of gigabytes, and libtiff writes to stderr.
FORMATS = tuple(name for name in images.FORMATS if name != "TIFF")

_SAVE_AGAIN = "open it in an image editor and save it again"
_SCAN, _APP1, _END = 0xDA, 0xE1, 0xD9
# JPEG markers whose segments Pillow skips by their length; it reads other data byte by byte.
_SEGMENTS = [marker & 0xFF for marker, (_, _, read) in MARKER.items() if read]
_MARKER = re.compile(b"\xff[" + re.escape(bytes([*_SEGMENTS, _END])) + b"]")
# Header of a PBM (two numbers), or a PGM or PPM (three), with blanks and comments.
_NUMBER = rb"(?:(?:\s|#[^\r\n]*+)++[^\s#]++)"
_PPM = re.compile(rb"P[14]%b{2}|P\w*+%b{3}" % (_NUMBER, _NUMBER))

CheckSize = Callable[[int, int], object]


def open_upload(
    file: BinaryIO,
    param: str = "image",
    check_size: CheckSize | None = None,
    needed: int | None = None,
) -> Image.Image:
    """Decode an uploaded image within the limits.

    Args:
        file: The file.
        param: Name of the field, for errors.
        check_size: Function that raises ``ImageError`` if the width and height are wrong.
        needed: Pixels per side that suffice because the image will be scaled down; a JPEG is then
            decoded at 1/2, 1/4 or 1/8 of its size.

    Raises:
        ImageError: If the image exceeds a limit, is damaged, or has a wrong size.
    """

    def check(image: ImageFile.ImageFile) -> None:
        width, height = image.size
        _check_exif(len(image.info.get("exif", b"")), param)
        jpeg = isinstance(image, JpegImageFile)  # or MPO, a subclass, which phones write
        _check_pixels(width, height, MAX_REDUCED_PIXELS if jpeg and needed else MAX_PIXELS)
        if check_size is not None:
            check_either_way_up(check_size, width, height)
        if jpeg:
            if needed is not None:
                image.draft(None, (needed, needed))
                _check_pixels(*image.size, MAX_PIXELS)
            return
        decoders = {tile[0] for tile in image.tile}
        slow = width * height > MAX_PYTHON_DECODED_PIXELS and decoders & Image.DECODERS.keys()
        if slow or ("ppm_plain" in decoders and _has_many_comments(file)):
            raise ImageError(
                f"a {image.format} of this kind and size takes too long to read; save it as PNG"
            )

    _check_parts(file, param)
    return open_image(file, param, check, FORMATS)


def _check_pixels(width: int, height: int, limit: int) -> None:
    if width * height > limit:
        raise ImageError(
            f"the image has {width} × {height} pixels, more than {limit:,}; "
            "make it smaller and send it again"
        )


def check_either_way_up(check_size: CheckSize, width: int, height: int) -> None:
    """Check a size, also rotated, because Exif after the pixels may rotate the image."""
    try:
        check_size(width, height)
    except ImageError:
        try:
            check_size(height, width)
        except ImageError:
            pass
        else:
            return
        raise


def _check_parts(file: BinaryIO, param: str) -> None:
    """Refuse a file with more parts than any encoder writes.

    This comes before Pillow, which iterates over the parts in Python.
    """
    start = file.read(8)
    data = start + file.read() if start.startswith((JPEG, PNG, GIF, b"P")) else b""
    if start.startswith(JPEG):
        _check_segments(data, param)
    elif start.startswith(PNG):
        _check_chunks(data, param)
    elif start.startswith(GIF) and _has_more_than(
        _blocks(data), MAX_PARTS + len(data) // MIN_GIF_BLOCK_BYTES
    ):
        raise ImageError(f"the GIF consists of unusually small blocks; {_SAVE_AGAIN}", param)
    elif (
        start[:1] == b"P"
        and start[1:2] in b"123456f"
        and not _PPM.match(data, 0, MAX_PADDING_BYTES)
    ):
        raise ImageError(f"the image's header is too long or damaged; {_SAVE_AGAIN}", param)


def _has_more_than(parts: Iterable[int], limit: int) -> bool:
    return next(islice(parts, limit, None), None) is not None


def _check_chunks(png: bytes, param: str) -> None:
    counts = Counter[bytes]()
    for chunks, (kind, start, end) in enumerate(iterate_chunks(png), 1):
        counts[kind] += 1
        what, limit = PART_LIMITS.get(kind, ("chunks", MAX_PARTS))
        if counts[kind] > limit or chunks > MAX_PARTS:
            raise ImageError(f"the PNG has over {limit:,} {what}; {_SAVE_AGAIN}", param)
        if kind == b"eXIf":
            _check_exif(end - start, param)


def _blocks(gif: bytes) -> Iterator[int]:
    """Yield the offset of each block of a GIF, and of each sub-block."""

    def palette_bytes(flags: int) -> int:
        return 3 << (flags & 7) + 1 if flags & 0x80 else 0

    at = 13 + palette_bytes(gif[10]) if len(gif) > 10 else len(gif)
    while at < len(gif) and gif[at] != 0x3B:  # trailer
        yield at
        if gif[at] == 0x2C:  # image descriptor, palette and code size
            at += 11 + (palette_bytes(gif[at + 9]) if at + 9 < len(gif) else 0)
        elif gif[at] == 0x21:  # extension and its label
            at += 2
        else:  # garbage, which Pillow skips
            at += 1
            continue
        while at < len(gif) and gif[at]:
            yield at
            at += 1 + gif[at]
        at += 1


def _check_segments(jpeg: bytes, param: str) -> None:
    counts, at, padding, exif = Counter[int](), len(JPEG), 0, 0
    while True:
        marker = _MARKER.search(jpeg, at)
        if not counts[_SCAN]:  # after the first scan it is image data
            padding += (marker.start() if marker else len(jpeg)) - at
        if padding > MAX_PADDING_BYTES:
            raise ImageError("the JPEG is padded or damaged; save it again", param)
        if marker is None or ((kind := marker[0][1]) == _END and counts[_SCAN]):
            return  # data after the image, as a phone's video, does not count
        at = marker.end()
        if kind == _END:
            padding += 2
            continue
        size = int.from_bytes(jpeg[at : at + 2])
        if kind == _APP1 and jpeg.startswith(b"Exif\0", at + 2):
            exif += size
            _check_exif(exif, param)
        at += size
        counts[kind] += 1
        what, limit = PART_LIMITS.get(kind, ("parts", MAX_PARTS))
        if counts[kind] > limit:
            raise ImageError(f"the JPEG has over {limit:,} {what}; {_SAVE_AGAIN}", param)


def _check_exif(size: int, param: str) -> None:
    if size > MAX_EXIF_BYTES:
        raise ImageError(
            f"the image has {size:,} bytes of Exif, more than {MAX_EXIF_BYTES:,}; remove the Exif "
            "data and send it again",
            param,
        )


def _has_many_comments(file: BinaryIO) -> bool:
    file.seek(0)
    return file.read().count(b"#") > MAX_COMMENTS
