"""What an upload may cost: it is refused by its header, before a single pixel is decoded."""

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

MAX_PIXELS = 4_000_000  # that are decoded
MAX_REDUCED_PIXELS = 2**24  # of a JPEG that is made smaller while it is decoded
MAX_PARTS = 10_000  # of a picture, of a kind; encoders write some hundreds, of those below few
MAX_PADDING_BYTES = 10_000  # bytes before a picture that mean nothing: Pillow reads each in Python
MAX_EXIF_BYTES = 2**18  # bytes: cameras write some thousands, and Pillow reads them in Python
PART_LIMITS: dict[int | bytes, tuple[str, int]] = {
    0xDA: ("scans", 64),  # each goes over all of the picture
    0xE1: ("segments of Exif or XMP", 256),  # for each Pillow copies all that came before
    b"iCCP": ("colour profiles", 4),  # each may be a megabyte, packed into a kilobyte
    b"eXIf": ("chunks of Exif", 4),
}
MIN_GIF_BLOCK_BYTES = 64  # bytes in each part of a GIF, on the average: encoders fill 255
PNG, GIF, JPEG = b"\x89PNG\r\n\x1a\n", b"GIF8", b"\xff\xd8"
MAX_PYTHON_DECODED_PIXELS = (
    2**16
)  # pixels of a kind that Pillow decodes in Python, a thousand times slower
MAX_COMMENTS = 1000  # of a PPM in words, for each of which Pillow moves all that follows
# Without TIFF: a tile of a small one may hold gigabytes, and libtiff itself writes to stderr.
FORMATS = tuple(name for name in images.FORMATS if name != "TIFF")

_SCAN, _APP1, _END = 0xDA, 0xE1, 0xD9
# What Pillow reads of a JPEG by the length behind it; over all else it goes byte by byte.
_READ = [marker & 0xFF for marker, (_, _, read) in MARKER.items() if read]
_MARKER = re.compile(b"\xff[" + re.escape(bytes([*_READ, _END])) + b"]")
# The numbers at the head of a bitmap, two, or a PGM or PPM, three, between blanks and comments.
_NUMBER = rb"(?:(?:\s|#[^\r\n]*+)++[^\s#]++)"
_PPM = re.compile(rb"P[14]%b{2}|P\w*+%b{3}" % (_NUMBER, _NUMBER))

CheckSize = Callable[[int, int], object]


def open_upload(
    file: BinaryIO,
    param: str = "image",
    check_size: CheckSize | None = None,
    needed: int | None = None,
) -> Image.Image:
    """Decode an upload, if its size is one that ``check_size`` does not raise at.

    Where it will be made smaller, so that each side is worth no more than ``needed`` pixels, a JPEG
    is decoded at a half, a quarter or an eighth. Raises ``ImageError`` of that field.
    """

    def check(picture: ImageFile.ImageFile) -> None:
        width, height = picture.size
        _check_exif(len(picture.info.get("exif", b"")), param)
        jpeg = isinstance(picture, JpegImageFile)  # MPO too, which phones write
        _check_pixels(width, height, MAX_REDUCED_PIXELS if jpeg and needed else MAX_PIXELS)
        if check_size is not None:
            _check_either_way_up(check_size, width, height)
        if jpeg:
            if needed is not None:
                picture.draft(None, (needed, needed))
                _check_pixels(*picture.size, MAX_PIXELS)
            return
        decoders = {tile[0] for tile in picture.tile}
        slow = width * height > MAX_PYTHON_DECODED_PIXELS and decoders & Image.DECODERS.keys()
        if slow or ("ppm_plain" in decoders and _commented(file)):
            raise ImageError(
                f"a {picture.format} of this kind and size takes too long to read; save it as PNG"
            )

    _check_parts(file, param)
    return open_image(file, param, check, FORMATS)


def _check_pixels(width: int, height: int, most: int) -> None:
    if width * height > most:
        raise ImageError(
            f"the picture has {width} × {height} pixels, more than {most:,}; "
            "make it smaller and send it again"
        )


def _check_either_way_up(check_size: CheckSize, width: int, height: int) -> None:
    """Refuse a size that is wrong also if EXIF, which may come after the pixels, turns it."""
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
    """Refuse a picture of more parts than any encoder writes, before Pillow reads the first.

    It goes from one to the next in Python.
    """
    start = file.read(8)
    data = start + file.read() if start.startswith((JPEG, PNG, GIF, b"P")) else b""
    if start.startswith(JPEG):
        _check_segments(data, param)
    elif start.startswith(PNG):
        _check_chunks(data, param)
    elif start.startswith(GIF) and _ends_late(
        _blocks(data), MAX_PARTS + len(data) // MIN_GIF_BLOCK_BYTES
    ):
        raise ImageError("the GIF is in parts smaller than encoders write; save it again", param)
    elif (
        start[:1] == b"P"
        and start[1:2] in b"123456f"
        and not _PPM.match(data, 0, MAX_PADDING_BYTES)
    ):
        raise ImageError("the picture's head is too long, or damaged; save it again", param)


def _ends_late(parts: Iterable[int], most: int) -> bool:
    """Whether there are more than so many."""
    return next(islice(parts, most, None), None) is not None


def _check_chunks(png: bytes, param: str) -> None:
    counts, at, chunks = Counter[bytes](), len(PNG), 0
    while at < len(png):
        size, kind = int.from_bytes(png[at : at + 4]), png[at + 4 : at + 8]
        at += 12 + size
        chunks += 1
        counts[kind] += 1
        what, most = PART_LIMITS.get(kind, ("chunks", MAX_PARTS))
        if counts[kind] > most or chunks > MAX_PARTS:
            raise ImageError(f"the PNG has over {most:,} {what}; save it again", param)
        if kind == b"eXIf":
            _check_exif(size, param)


def _blocks(gif: bytes) -> Iterator[int]:
    """Give where each block of a GIF begins, and each part of one."""

    def colours(flags: int) -> int:
        return 3 << (flags & 7) + 1 if flags & 0x80 else 0

    at = 13 + colours(gif[10]) if len(gif) > 10 else len(gif)
    while at < len(gif) and gif[at] != 0x3B:  # its end
        yield at
        if gif[at] == 0x2C:  # an image: its place, its colours, the size of its codes
            at += 11 + (colours(gif[at + 9]) if at + 9 < len(gif) else 0)
        elif gif[at] == 0x21:  # an extension, and its kind
            at += 2
        else:  # nothing, which Pillow passes over
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
        if not counts[_SCAN]:  # between markers of a scan there is the picture
            padding += (marker.start() if marker else len(jpeg)) - at
        if padding > MAX_PADDING_BYTES:
            raise ImageError("the JPEG is padded, or damaged; save it again", param)
        if marker is None or ((kind := marker[0][1]) == _END and counts[_SCAN]):
            return  # what lies behind that does not count, as a phone's film
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
        what, most = PART_LIMITS.get(kind, ("parts", MAX_PARTS))
        if counts[kind] > most:
            raise ImageError(f"the JPEG has over {most:,} {what}; save it again", param)


def _check_exif(size: int, param: str) -> None:
    if size > MAX_EXIF_BYTES:
        raise ImageError(
            f"the picture has {size:,} bytes of Exif, more than {MAX_EXIF_BYTES:,}; "
            "save it without",
            param,
        )


def _commented(file: BinaryIO) -> bool:
    file.seek(0)
    return file.read().count(b"#") > MAX_COMMENTS
