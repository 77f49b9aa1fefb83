"""Pictures that the user of a command names, to read or to write."""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path
from typing import BinaryIO

from PIL import Image, ImageFile

from scanline.model.images import any_image_size, open_image
from scanline.service.upload_limits import CheckSize, check_either_way_up


def read_file(path: Path) -> BinaryIO:
    """Read a file, pipe or, for ``-``, standard input into memory.

    A pipe can be read only once and from start to end, unlike what image decoders do.

    Raises:
        ValueError: If standard input is closed.
    """
    if path != Path("-"):
        return io.BytesIO(path.read_bytes())
    if sys.stdin is None:
        raise ValueError("standard input is closed: name a file instead of -")
    return io.BytesIO(sys.stdin.buffer.read())


def open_picture(
    file: BinaryIO, param: str, check_size: CheckSize | None, needed: int | None
) -> Image.Image:
    """Decode a picture like ``open_upload``, but of any size and supported format."""

    def check(image: ImageFile.ImageFile) -> None:
        if check_size is not None:
            check_either_way_up(check_size, *image.size)
        if needed is not None:
            image.draft(None, (needed, needed))  # scales a JPEG down, which saves memory

    with any_image_size():
        return open_image(file, param, check)


def check_target(out: Path) -> None:
    """Raise ``ValueError`` if the PNG file ``out`` cannot be written, before minutes of work."""
    if out.is_dir():
        raise ValueError(f"{out} is a folder: name a file in it, such as {out / 'samples.png'}")
    if out.exists() and not out.is_file():
        return  # a FIFO or a device
    if out.suffix.lower() != ".png" and (out.suffix or not out.exists()):
        raise ValueError(f"{out} must end in .png, because it will be a PNG file")
    try:
        folder = out.resolve().parent
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass  # this user may write into the folder
    except OSError as error:
        raise ValueError(f"{out} cannot be written ({error.strerror}): name another file") from None
