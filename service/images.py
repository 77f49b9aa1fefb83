"""Pictures in and out: uploads as a model's canvas, drawings as PNG, grids, archives, arrays."""

from __future__ import annotations

import functools
import io
import math
import struct
import zipfile
import zlib
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from scanline.model.config import ModelConfig
from scanline.model.images import Fit, ImageError, fit_image, fit_mask, flatten_alpha, size_error
from scanline.service.upload_limits import PNG, open_upload


class MissingMaskError(ImageError):
    """A picture to complete of which nothing says what is unknown."""


def fit_to_model(config: ModelConfig, picture: Image.Image, fit: Fit) -> Image.Image:
    """Give a picture the model's size and channels, transparency kept; raises ``ImageError``."""
    return fit_image(picture, config.height, config.width, config.channels, fit)


def image_to_canvas(picture: Image.Image) -> NDArray[np.uint8]:
    """Give a fitted picture's values, transparent parts laid on black: uint8 ``[T, C]``."""
    flat = flatten_alpha(picture)
    return flat.reshape(-1, flat.shape[-1])


def read_image(image: BinaryIO, config: ModelConfig, fit: Fit) -> NDArray[np.uint8]:
    """Read an upload as the model's values, uint8 ``[T, C]``; raises ``ImageError``."""
    return image_to_canvas(fit_to_model(config, _open(image, config, fit)[0], fit))


def _open(image: BinaryIO, config: ModelConfig, fit: Fit) -> tuple[Image.Image, tuple[int, int]]:
    """Open a picture that is to be fitted, and tell its own size: it may be a smaller one."""
    size = own = (config.width, config.height)

    def check_size(width: int, height: int) -> None:
        nonlocal own
        own = (width, height)
        if fit == "exact" and (width, height) != size:
            raise size_error((width, height), size)

    # Twice the size is left for the resampling to choose from.
    needed = None if fit == "exact" else 2 * max(size)
    picture = open_upload(image, "image", check_size, needed)
    lain = (picture.width - picture.height) * (own[0] - own[1]) < 0  # turned by its EXIF tag
    return picture, own[::-1] if lain else own


def transparent(picture: Image.Image) -> NDArray[np.bool_]:
    """Tell the pixels that are wholly transparent (alpha 0): bool ``[H, W]``."""
    alpha = np.asarray(picture.convert("RGBA").getchannel("A"), np.uint8)
    return np.equal(alpha, 0)


def _open_mask(file: BinaryIO, config: ModelConfig, own: tuple[int, int], fit: Fit) -> Image.Image:
    """Open a mask of the model's size, or one that is fitted: of the picture's ``own`` shape."""
    size = (config.width, config.height)
    wanted = f"{size[0]} × {size[1]}"
    if own != size:
        wanted += f", or the picture's, {own[0]} × {own[1]}, or that made smaller"

    def check_size(width: int, height: int) -> None:
        # Within what two sides lose as they are rounded.
        alike = fit != "exact" and abs(width * own[1] - height * own[0]) <= max(own)
        if (width, height) != size and not alike:
            raise ImageError(
                f"the mask is {width} × {height}; it must have the model's size, {wanted}", "mask"
            )

    mask = open_upload(file, "mask", check_size)
    check_size(*mask.size)
    return mask


def _painted(
    mask: BinaryIO, config: ModelConfig, own: tuple[int, int], fit: Fit
) -> NDArray[np.bool_]:
    """Read a mask: bool ``[T]``, true where its pixels are transparent (alpha 0): to be drawn.

    One of the picture's ``own`` shape is fitted as that is. Raises ``ImageError`` on one with
    nothing transparent, or nothing that is left of it.
    """
    marked = transparent(_open_mask(mask, config, own, fit))
    paint = fit_mask(marked, config.height, config.width, fit).reshape(-1)
    if not marked.any():
        raise ImageError(
            "the mask has no transparent pixel (alpha 0), so there is nothing to draw; make the "
            "parts to be drawn transparent",
            "mask",
        )
    if not paint.any():
        raise ImageError(
            f"fit {fit} crops away all that the mask marks; mark a part nearer the middle, or "
            "choose contain",
            "mask",
        )
    return paint


def read_masked_image(
    image: BinaryIO,
    mask: BinaryIO | None,
    known_rows: int | None,
    fit: Fit,
    config: ModelConfig,
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Read a picture to complete: its values uint8 ``[T, C]``, and which are known, bool ``[T]``.

    Known are the first ``known_rows``, else what the mask does not paint, else what has no
    transparent part in the picture itself. Raises ``ImageError``.
    """
    if known_rows is not None and mask is not None:
        raise ImageError("send known_rows or mask, not both", "mask", "unsupported")
    if known_rows is not None and not 0 <= known_rows < config.height:
        raise ImageError(
            f"known_rows must be 0 to {config.height - 1}, so that something is left to draw; "
            f"it is {known_rows} (/v1/score measures a whole picture)",
            "known_rows",
            "out_of_range",
        )
    picture, own = _open(image, config, fit)
    canvas = image_to_canvas(fit_to_model(config, picture, fit))
    if known_rows is not None:
        return canvas, np.arange(config.pixels) < known_rows * config.width
    if mask is not None:
        return canvas, ~_painted(mask, config, own, fit)
    clear = transparent(picture)
    hole = fit_mask(clear, config.height, config.width, fit)
    if clear.any() and not hole.any():
        raise ImageError(
            f"fit {fit} crops away all of the picture that is transparent; make a part nearer the "
            "middle transparent, or choose contain",
            "image",
        )
    if not hole.any():
        raise MissingMaskError(
            "nothing says which part to draw: give known_rows, or a mask, or a picture that is "
            "transparent where it is unknown",
            code="missing",
        )
    return canvas, ~hole.reshape(-1)


def to_png(pixels: NDArray[np.uint8], config: ModelConfig) -> bytes:
    """Encode an image: uint8 ``[T, C]`` → PNG, grey or RGB."""
    # By hand in a fifth of the time, for this is done for every image, and as small.
    H, W, C = config.height, config.width, config.channels
    rows = np.zeros((H, 1 + W * C), np.uint8)  # each behind its filter, 0 for none
    rows[:, 1:] = pixels.reshape(H, W * C)
    return _png_head(H, W, C) + _png_chunk(b"IDAT", zlib.compress(rows.tobytes())) + _PNG_END


def _png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(f">I4s{len(data)}sI", len(data), kind, data, zlib.crc32(kind + data))


_PNG_END = _png_chunk(b"IEND", b"")


@functools.lru_cache
def _png_head(height: int, width: int, channels: int) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    return PNG + _png_chunk(b"IHDR", header)


def to_grid(images: Sequence[NDArray[np.uint8]], config: ModelConfig, scale: int = 1) -> bytes:
    """Lay images out in a near-square grid, two pixels apart, each pixel ``scale`` wide, as PNG."""
    columns = math.ceil(math.sqrt(len(images)))
    rows = math.ceil(len(images) / columns)
    gap, H, W = 2, config.height, config.width
    grid = np.full((rows * (H + gap) - gap, columns * (W + gap) - gap, config.channels), 96, "u1")
    for j, pixels in enumerate(images):
        y, x = j // columns * (H + gap), j % columns * (W + gap)
        grid[y : y + H, x : x + W] = pixels.reshape(H, W, -1)
    picture = Image.fromarray(grid.squeeze(-1) if config.channels == 1 else grid)
    size = (picture.width * scale, picture.height * scale)
    buffer = io.BytesIO()
    picture.resize(size, Image.Resampling.NEAREST).save(buffer, "PNG")
    return buffer.getvalue()


def to_zip(pngs: Sequence[tuple[str, bytes]]) -> bytes:
    """Pack named PNG files into an archive, stored: PNG does not shrink further."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, png in pngs:
            # A fixed date, so that the same seed gives the same bytes.
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), png)
    return buffer.getvalue()


def to_npy(images: Sequence[NDArray[np.uint8]], config: ModelConfig) -> bytes:
    """Write images as a NumPy file: uint8 ``[n, H, W, C]``."""
    buffer = io.BytesIO()
    stacked = np.stack(images).reshape(-1, config.height, config.width, config.channels)
    np.save(buffer, stacked, allow_pickle=False)
    return buffer.getvalue()
