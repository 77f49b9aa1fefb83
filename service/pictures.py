"""Pictures in and out: uploads fitted to a model, and drawings as PNG, grids and archives."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Sequence
from typing import BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from scanline.model.config import ModelConfig

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
MAX_PIXELS = 2**24  # of an upload; checked before a single one is decoded

Fit = Literal["exact", "cover", "contain"]


class PictureError(ValueError):
    """A picture that cannot be used; the message says why and what to send instead.

    ``param`` is the field at fault: ``image``, ``mask`` or ``known_rows``.
    """

    def __init__(self, message: str, param: str = "image") -> None:
        super().__init__(message)
        self.param = param


def open_picture(file: BinaryIO, param: str = "image") -> Image.Image:
    """Decode an upload; raises ``PictureError`` on no image, a damaged one or one too large."""
    try:
        picture = Image.open(file, formats=FORMATS)
        width, height = picture.size
        if width * height > MAX_PIXELS:
            raise PictureError(
                f"the picture has {width} × {height} pixels, more than {MAX_PIXELS:,}; "
                "make it smaller and send it again",
                param,
            )
        picture.load()
        return ImageOps.exif_transpose(picture)
    except PictureError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise PictureError("the picture is far too large; make it smaller", param) from None
    except UnidentifiedImageError:
        raise PictureError(
            f"the upload is no picture of a kind known here; send one of {', '.join(FORMATS)}",
            param,
        ) from None
    except Exception as error:  # Pillow's readers raise anything at all on damaged files
        raise PictureError(f"the picture is damaged ({error}); save it again", param) from None


def fit_picture(picture: Image.Image, config: ModelConfig, fit: Fit = "exact") -> Image.Image:
    """Give a picture the model's size and channels, transparency kept as an alpha channel.

    ``exact`` refuses another size, ``cover`` crops the middle to the model's shape and scales,
    ``contain`` scales and leaves the rest transparent. Raises ``PictureError``.
    """
    size = (config.width, config.height)
    if picture.mode.startswith("I;16"):  # Pillow would cut these off at 255, not scale them
        picture = Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    if picture.mode in ("I", "F"):
        raise PictureError(
            "the picture's 32-bit values have no known range; save it with 8 or 16 bits"
        )
    try:
        picture = picture.convert("RGBA" if config.channels == 3 else "LA")
    except ValueError:
        raise PictureError(
            f"a picture of mode {picture.mode} cannot be used; save it as grey or RGB"
        ) from None
    if picture.size == size:
        return picture
    if fit == "exact":
        raise PictureError(
            f"the picture is {picture.width} × {picture.height} and the model draws "
            f"{config.width} × {config.height}: send that size, or set fit to 'cover' (scale, and "
            "crop the middle) or 'contain' (scale, and leave a border)"
        )
    if fit == "cover":
        return ImageOps.fit(picture, size, Image.Resampling.LANCZOS)
    return ImageOps.pad(picture, size, Image.Resampling.LANCZOS, color=(0,) * len(picture.mode))


def to_canvas(picture: Image.Image, config: ModelConfig) -> NDArray[np.uint8]:
    """Give a fitted picture's values, transparent parts on black: uint8 ``[T, C]``."""
    mode = "RGB" if config.channels == 3 else "L"
    background = Image.new(picture.mode, picture.size, (0,) * (len(picture.mode) - 1) + (255,))
    # Pillow composes RGBA only; grey goes there and back unchanged.
    flat = Image.alpha_composite(background.convert("RGBA"), picture.convert("RGBA"))
    return np.asarray(flat.convert(mode), np.uint8).reshape(config.pixels, config.channels).copy()


def painted(mask: Image.Image, config: ModelConfig) -> NDArray[np.bool_]:
    """Read a mask: bool ``[T]``, true where its pixels are transparent (alpha 0): to be drawn.

    Raises ``PictureError`` on a mask of another size, or one with nothing transparent.
    """
    if mask.size != (config.width, config.height):
        raise PictureError(
            f"the mask is {mask.width} × {mask.height}; it must have the model's size, "
            f"{config.width} × {config.height}",
            "mask",
        )
    alpha = np.asarray(mask.convert("RGBA"), np.uint8)[..., 3].reshape(-1)
    paint: NDArray[np.bool_] = np.equal(alpha, 0)
    if not paint.any():
        raise PictureError(
            "the mask has no transparent pixel (alpha 0), so there is nothing to draw; make the "
            "parts to be drawn transparent",
            "mask",
        )
    return paint


def read_upload(
    image: BinaryIO,
    mask: BinaryIO | None,
    known_rows: int | None,
    fit: Fit,
    config: ModelConfig,
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Read a picture to complete: its values uint8 ``[T, C]``, and which are known, bool ``[T]``.

    Known are the first ``known_rows``, else what the mask does not paint, else what is not
    transparent in the picture itself. Raises ``PictureError``.
    """
    if known_rows is not None and mask is not None:
        raise PictureError("send known_rows or mask, not both", "mask")
    if known_rows is not None and not 0 <= known_rows < config.height:
        raise PictureError(
            f"known_rows must be 0 to {config.height - 1}, so that something is left to draw; "
            f"it is {known_rows}",
            "known_rows",
        )
    picture = fit_picture(open_picture(image), config, fit)
    canvas = to_canvas(picture, config)
    if known_rows is not None:
        return canvas, np.arange(config.pixels) < known_rows * config.width
    if mask is not None:
        return canvas, ~painted(open_picture(mask, "mask"), config)
    try:
        return canvas, ~painted(picture, config)
    except PictureError:
        raise PictureError(
            "nothing says which part to draw: give known_rows, or a mask, or a picture that is "
            "transparent where it is unknown"
        ) from None


def to_png(pixels: NDArray[np.uint8], config: ModelConfig) -> bytes:
    """Encode an image: uint8 ``[T, C]`` → PNG, grey or RGB."""
    shape = (config.height, config.width) + ((3,) if config.channels == 3 else ())
    return _encode(Image.fromarray(pixels.reshape(shape)))


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
    return _encode(picture.resize(size, Image.Resampling.NEAREST))


def to_zip(pngs: Sequence[tuple[str, bytes]]) -> bytes:
    """Pack named PNG files into an archive, stored: PNG does not shrink further."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, png in pngs:
            # A fixed date, so that the same seed gives the same bytes.
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), png)
    return buffer.getvalue()


def _encode(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()
