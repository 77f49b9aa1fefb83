"""Pictures that the user of a command names, to read or to write."""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile

from scanline.model.config import ModelConfig
from scanline.model.images import Fit, ImageError, any_image_size, open_image
from scanline.service.images import MissingMaskError, read_masked_image
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


def read_known_pixels(
    picture: Path, rows: int | None, fit: Fit, config: ModelConfig
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Read a picture to complete, like ``read_masked_image``, by the options of a command.

    Raises:
        ValueError: If ``--rows`` is invalid or missing, or the picture cannot be read.
    """
    if rows is not None and not 0 <= rows < config.height:
        raise ValueError(f"--rows must be 0 to {config.height - 1}, to leave something to draw")
    try:
        return read_masked_image(read_file(picture), None, rows, fit, config, open_picture)
    except MissingMaskError:
        raise ValueError(
            f"{picture}: the part to draw is not marked: give --rows, or a picture that is "
            "transparent where it is unknown"
        ) from None
    except ImageError as error:
        raise ValueError(f"{picture}: {error}") from None


def check_not_replaced(picture: Path, out: Path) -> None:
    """Raise ``ValueError`` if ``out`` is the picture that the command reads."""
    if out.exists() and picture.exists() and out.samefile(picture):
        raise ValueError(f"{out} is the picture itself: name another file to write")


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
