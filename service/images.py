"""Images in requests and replies: decoding uploads for a model, and encoding PNG, ZIP and NumPy."""

from __future__ import annotations

import functools
import io
import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from scanline.model.config import ModelConfig
from scanline.model.images import Fit, ImageError, fit_image, fit_mask, flatten_alpha, size_error
from scanline.model.png import SIGNATURE, png_chunk
from scanline.service.upload_limits import CheckSize, open_upload

# Opens an image file: the file, the name of its field, a check of its size, and the pixels per side
# that suffice. ``open_upload`` limits the cost of decoding.
OpenImage = Callable[[BinaryIO, str, CheckSize | None, int | None], Image.Image]

MAX_SIDE = 2048  # maximum side of an enlarged image in a reply, in pixels
GRID_GAP = 2  # pixels between the images of a grid


class MissingMaskError(ImageError):
    """An image to complete has neither a mask, nor known rows, nor transparent pixels."""


def to_canvas(image: Image.Image, config: ModelConfig, fit: Fit) -> NDArray[np.uint8]:
    """Fit an image to the model, with transparent parts on black: uint8 ``[T, C]``.

    Raises:
        ImageError: If ``fit`` is ``exact`` and the size differs.
    """
    fitted = fit_image(image, config.height, config.width, config.channels, fit)
    return flatten_alpha(fitted).reshape(config.pixels, config.channels)


def read_image(file: BinaryIO, config: ModelConfig, fit: Fit) -> NDArray[np.uint8]:
    """Read an upload as values of the model: uint8 ``[T, C]``.

    Raises:
        ImageError: If the upload is not a valid image.
    """
    return to_canvas(_open(file, config, fit)[0], config, fit)


def _open(
    file: BinaryIO, config: ModelConfig, fit: Fit, open_image: OpenImage = open_upload
) -> tuple[Image.Image, tuple[int, int]]:
    """Open an image that will be fitted.

    Returns:
        The image, which may have been scaled down, and its original size.
    """
    model_size = original = (config.width, config.height)

    def check_size(width: int, height: int) -> None:
        nonlocal original
        original = (width, height)
        if fit == "exact" and original != model_size:
            raise size_error(original, model_size)

    # Twice the model's size leaves enough detail for the resampling.
    needed = None if fit == "exact" else 2 * max(model_size)
    image = open_image(file, "image", check_size, needed)
    rotated = (image.width - image.height) * (original[0] - original[1]) < 0  # by its Exif tag
    return image, original[::-1] if rotated else original


def transparent(image: Image.Image) -> NDArray[np.bool_]:
    """Return which pixels are fully transparent (alpha 0): bool ``[H, W]``."""
    alpha = np.asarray(image.convert("RGBA").getchannel("A"), np.uint8)
    return np.equal(alpha, 0)


def _open_mask(
    file: BinaryIO, config: ModelConfig, original: tuple[int, int], fit: Fit
) -> Image.Image:
    """Open a mask of the model's size, or of the aspect ratio of the image that is fitted."""
    size = (config.width, config.height)
    allowed = f"{size[0]} × {size[1]} (the model's size)"
    if original != size:
        allowed += f", or {original[0]} × {original[1]} (the image's size), possibly scaled down"

    def check_size(width: int, height: int) -> None:
        # Rounding both sides of a scaled image changes the products by at most this much.
        same_aspect = abs(width * original[1] - height * original[0]) <= max(original)
        if (width, height) != size and not (fit != "exact" and same_aspect):
            raise ImageError(f"the mask is {width} × {height}; it must be {allowed}", "mask")

    mask = open_upload(file, "mask", check_size)
    check_size(*mask.size)
    return mask


def _read_mask(
    file: BinaryIO, config: ModelConfig, original: tuple[int, int], fit: Fit
) -> NDArray[np.bool_]:
    """Read a mask: bool ``[T]``, true for pixels to draw, which are transparent (alpha 0).

    Args:
        file: The mask's file.
        config: The model's configuration.
        original: Size of the image; a mask of its aspect ratio is fitted as the image is.
        fit: How to fit both.

    Raises:
        ImageError: If the mask has no transparent pixel, or none within the fitted part.
    """
    marked = transparent(_open_mask(file, config, original, fit))
    unknown = fit_mask(marked, config.height, config.width, fit).reshape(-1)
    if not marked.any():
        raise ImageError(
            "the mask has no transparent pixel (alpha 0), so there is nothing to draw; make the "
            "parts to be drawn transparent",
            "mask",
        )
    if not unknown.any():
        raise ImageError(
            f"fit {fit} crops away the whole part that the mask marks; mark a part nearer the "
            "middle, or choose contain",
            "mask",
        )
    return unknown


def read_masked_image(
    image: BinaryIO,
    mask: BinaryIO | None,
    known_rows: int | None,
    fit: Fit,
    config: ModelConfig,
    open_image: OpenImage = open_upload,
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Read an image to complete.

    Args:
        image: The image's file.
        mask: The mask's file, transparent where pixels are unknown.
        known_rows: Number of known rows at the top. Without it and without a mask, the transparent
            pixels of the image are unknown.
        fit: How to fit the image to the model's size.
        config: The model's configuration.
        open_image: How to open the image.

    Returns:
        The values, uint8 ``[T, C]``, and which pixels are known, bool ``[T]``.

    Raises:
        MissingMaskError: If nothing says which pixels are unknown.
        ImageError: If a file or ``known_rows`` is invalid.
    """
    if known_rows is not None and mask is not None:
        raise ImageError("send known_rows or mask, not both", "mask", "unsupported")
    if known_rows is not None and not 0 <= known_rows < config.height:
        raise ImageError(
            f"known_rows must be 0 to {config.height - 1}, so that something is left to draw; "
            f"got {known_rows} (/v1/score measures a whole image)",
            "known_rows",
            "out_of_range",
        )
    opened, original = _open(image, config, fit, open_image)
    canvas = to_canvas(opened, config, fit)
    if known_rows is not None:
        return canvas, np.arange(config.pixels) < known_rows * config.width
    if mask is not None:
        return canvas, ~_read_mask(mask, config, original, fit)
    clear = transparent(opened)
    unknown = fit_mask(clear, config.height, config.width, fit)
    if clear.any() and not unknown.any():
        raise ImageError(
            f"fit {fit} crops away the whole transparent part of the image; make a part nearer the "
            "middle transparent, or choose contain",
            "image",
        )
    if not unknown.any():
        raise MissingMaskError(
            "nothing says which part to draw: send known_rows, or a mask, or an image that is "
            "transparent where it is unknown",
            code="missing",
        )
    return canvas, ~unknown.reshape(-1)


def to_png(pixels: NDArray[np.uint8], config: ModelConfig) -> bytes:
    """Encode an image, uint8 ``[T, C]``, as greyscale or RGB PNG."""
    # Written by hand, because every image passes here: five times as fast as Pillow, as small.
    H, W, C = config.height, config.width, config.channels
    rows = np.zeros((H, 1 + W * C), np.uint8)  # each after its filter type, 0 for none
    rows[:, 1:] = pixels.reshape(H, W * C)
    return _png_head(H, W, C) + png_chunk(b"IDAT", zlib.compress(rows.tobytes())) + _PNG_END


_PNG_END = png_chunk(b"IEND", b"")


@functools.lru_cache
def _png_head(height: int, width: int, channels: int) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    return SIGNATURE + png_chunk(b"IHDR", header)


def grid_size(n: int, config: ModelConfig) -> tuple[int, int]:
    """Return the height and width of a grid of ``n`` images, in pixels."""
    columns = math.isqrt(n - 1) + 1
    rows = math.ceil(n / columns)
    height, width = config.height + GRID_GAP, config.width + GRID_GAP
    return rows * height - GRID_GAP, columns * width - GRID_GAP


def arrange_grid(images: Sequence[NDArray[np.uint8]], config: ModelConfig) -> NDArray[np.uint8]:
    """Arrange images, uint8 ``[T, C]``, in a near-square grid: uint8 ``[H, W, C]``."""
    H, W = config.height, config.width
    grid = np.full((*grid_size(len(images), config), config.channels), 96, np.uint8)
    columns = math.isqrt(len(images) - 1) + 1
    for j, pixels in enumerate(images):
        y, x = j // columns * (H + GRID_GAP), j % columns * (W + GRID_GAP)
        grid[y : y + H, x : x + W] = pixels.reshape(H, W, -1)
    return grid


def to_grid(images: Sequence[NDArray[np.uint8]], config: ModelConfig, scale: int = 1) -> bytes:
    """Encode images as one PNG, in a near-square grid.

    Args:
        images: Values of each image, uint8 ``[T, C]``.
        config: The model's configuration.
        scale: Enlargement of each pixel.
    """
    grid = arrange_grid(images, config)
    image = Image.fromarray(grid.squeeze(-1) if config.channels == 1 else grid)
    return image_to_png(image, scale)


def image_to_png(image: Image.Image, scale: int) -> bytes:
    """Encode an image as PNG, each pixel enlarged by ``scale``."""
    size = (image.width * scale, image.height * scale)
    buffer = io.BytesIO()
    image.resize(size, Image.Resampling.NEAREST).save(buffer, "PNG")
    return buffer.getvalue()


def to_zip(pngs: Sequence[tuple[str, bytes]]) -> bytes:
    """Pack named PNG files into a ZIP archive, uncompressed because PNG files already are."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, png in pngs:
            # A constant date, so that the same seed gives the same bytes.
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), png)
    return buffer.getvalue()


def to_npy(images: Sequence[NDArray[np.uint8]], config: ModelConfig) -> bytes:
    """Encode images as a NumPy file: uint8 ``[n, H, W, C]``."""
    buffer = io.BytesIO()
    stacked = np.stack(images).reshape(-1, config.height, config.width, config.channels)
    np.save(buffer, stacked, allow_pickle=False)
    return buffer.getvalue()
