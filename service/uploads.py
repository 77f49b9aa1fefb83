"""What an upload may cost: it is refused by its header, before a single pixel is decoded."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import BinaryIO

from PIL import Image, ImageFile
from PIL.JpegImagePlugin import JpegImageFile

from scanline.model import pictures
from scanline.model.pictures import PictureError, open_picture

MAX_PIXELS = 4_000_000  # that are decoded
MAX_REDUCED = 2**24  # of a JPEG that is made smaller while it is decoded
MAX_PARTS = 10_000  # of a JPEG, of a kind; encoders write some hundreds, of those below few
PARTS = {
    0xDA: ("scans", 64),  # each goes over all of the picture
    0xE1: ("segments of Exif or XMP", 256),  # for each Pillow copies all that came before
}
MAX_SLOW = 2**16  # pixels of a kind that Pillow decodes in Python, a thousand times slower
MAX_COMMENTS = 1000  # of a PPM in words, for each of which Pillow moves all that follows
# Without TIFF: a tile of a small one may hold gigabytes, and libtiff itself writes to stderr.
FORMATS = tuple(name for name in pictures.FORMATS if name != "TIFF")

# A JPEG's with a length behind it: no restart in a scan, and no value that looks like one.
_MARKER = re.compile(rb"\xff[\xc0-\xcf\xd9-\xfe]")
_END = 0xD9

CheckSize = Callable[[int, int], object]


def open_upload(
    file: BinaryIO,
    param: str = "image",
    check_size: CheckSize | None = None,
    needed: int | None = None,
) -> Image.Image:
    """Decode an upload, if its size is one that ``check_size`` does not raise at.

    Where it will be made smaller, so that each side is worth no more than ``needed`` pixels, a JPEG
    is decoded at a half, a quarter or an eighth. Raises ``PictureError`` of that field.
    """

    def check(picture: ImageFile.ImageFile) -> None:
        width, height = picture.size
        jpeg = isinstance(picture, JpegImageFile)  # MPO too, which phones write
        _check_pixels(width, height, MAX_REDUCED if jpeg and needed else MAX_PIXELS)
        if check_size is not None:
            _check_either_way_up(check_size, width, height)
        if jpeg:
            if needed is not None:
                picture.draft(None, (needed, needed))
                _check_pixels(*picture.size, MAX_PIXELS)
            return
        decoders = {tile[0] for tile in picture.tile}
        slow = width * height > MAX_SLOW and decoders & Image.DECODERS.keys()
        if slow or ("ppm_plain" in decoders and _commented(file)):
            raise PictureError(
                f"a {picture.format} of this kind and size takes too long to read; save it as PNG"
            )

    _check_parts(file, param)
    return open_picture(file, param, check, FORMATS)


def _check_pixels(width: int, height: int, most: int) -> None:
    if width * height > most:
        raise PictureError(
            f"the picture has {width} × {height} pixels, more than {most:,}; "
            "make it smaller and send it again"
        )


def _check_either_way_up(check_size: CheckSize, width: int, height: int) -> None:
    """Refuse a size that is wrong also if EXIF, which may come after the pixels, turns it."""
    try:
        check_size(width, height)
    except PictureError:
        try:
            check_size(height, width)
        except PictureError:
            pass
        else:
            return
        raise


def _check_parts(file: BinaryIO, param: str) -> None:
    """Refuse a JPEG of more parts than any encoder writes, before Pillow reads the first."""
    data = file.read() if file.read(2) == b"\xff\xd8" else b""
    file.seek(0)
    counts, at = Counter[int](), 0  # of what lies behind the picture's end none, as a phone's film
    while (marker := _MARKER.search(data, at)) and (kind := marker[0][1]) != _END:
        at = marker.end() + int.from_bytes(data[marker.end() : marker.end() + 2])
        counts[kind] += 1
        what, most = PARTS.get(kind, ("parts", MAX_PARTS))
        if counts[kind] > most:
            raise PictureError(f"the JPEG has over {most:,} {what}; save it again", param)


def _commented(file: BinaryIO) -> bool:
    place = file.tell()
    file.seek(0)
    comments = file.read().count(b"#")
    file.seek(place)
    return comments > MAX_COMMENTS
