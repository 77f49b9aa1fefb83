"""What an upload may cost: it is refused by its header, before a single pixel is decoded."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO

from PIL import Image, ImageFile
from PIL.JpegImagePlugin import JpegImageFile

from scanline.model.pictures import PictureError, open_picture

MAX_PIXELS = 4_000_000  # that are decoded
MAX_REDUCED = 2**24  # of a JPEG that is made smaller while it is decoded
MAX_SCANS = 64  # of a JPEG, each of which goes over all of it; encoders write about ten
MAX_SLOW = 2**16  # pixels of a kind that Pillow decodes in Python, a thousand times slower

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
            _check_scans(file)
            if needed is not None:
                picture.draft(None, (needed, needed))
                _check_pixels(*picture.size, MAX_PIXELS)
        elif width * height > MAX_SLOW and any(tile[0] in Image.DECODERS for tile in picture.tile):
            raise PictureError(
                f"a {picture.format} of this kind and size takes too long to read; save it as PNG"
            )

    return open_picture(file, param, check)


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


def _check_scans(file: BinaryIO) -> None:
    place = file.tell()
    file.seek(0)
    scans = file.read().count(b"\xff\xda")
    file.seek(place)
    if scans > MAX_SCANS:
        raise PictureError(f"the JPEG has over {MAX_SCANS} scans; save it again")
