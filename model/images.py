"""Decoding of image files, shared by training data and uploads.

Images are turned upright, converted to 8 bits per value and fitted to a size. Transparent pixels
are blended with ``BACKGROUND``.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from typing import BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageFile, ImageOps, UnidentifiedImageError

from scanline.model.png import without_unused_chunks

# An explicit list, so that no file reaches Pillow's riskier decoders (EPS runs Ghostscript).
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
_PHOTOMETRIC = 262  # TIFF tag
# The transpose that turns an image upright, by its Exif orientation.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
BACKGROUND = 0  # black, like the background of MNIST

Fit = Literal["exact", "cover", "contain"]


class ImageError(ValueError):
    """Raised if an image cannot be used; the message says why and what to send instead.

    ``param`` is the invalid field (``image``, ``mask`` or ``known_rows``), ``code`` the error code.
    """

    def __init__(self, message: str, param: str = "image", code: str = "invalid_image") -> None:
        super().__init__(message)
        self.param, self.code = param, code


def open_image(
    file: BinaryIO,
    param: str = "image",
    check: Callable[[ImageFile.ImageFile], None] | None = None,
    formats: tuple[str, ...] = FORMATS,
) -> Image.Image:
    """Decode an image, turned upright; of an animation, the first frame.

    Args:
        file: The file.
        param: The field to name in errors.
        check: Called before any pixel is decoded; may raise.
        formats: The accepted formats.

    Returns:
        An image of mode ``L`` or ``RGB``, with ``A`` if it may have transparent pixels.

    Raises:
        ImageError: If the file is not an image, has another format or is damaged.
    """
    try:
        opened = Image.open(without_unused_chunks(file), formats=formats)
        if check is not None:
            check(opened)
        _scale_transparent_value(opened)
        opened.load()
        image: Image.Image = opened
        if image.format == "PPM" and image.mode == "I":  # 16 bits, despite the mode
            image = image.convert("I;16")
        converted = to_8_bit(_turn_upright(image, opened))
        # In a TIFF 0 may be white. Pillow inverts only 8-bit ones.
        white_is_0 = getattr(opened, "tag_v2", {}).get(_PHOTOMETRIC) == 0
        if white_is_0 and opened.mode.startswith("I;16"):
            return ImageOps.invert(converted)
        return converted
    except ImageError as error:
        raise ImageError(str(error), param) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise ImageError("the image is far too large; make it smaller", param) from None
    except UnidentifiedImageError:
        raise ImageError(
            f"the file is not an image of a supported format; use one of {', '.join(formats)}",
            param,
        ) from None
    except MemoryError:
        raise ImageError(
            "there is not enough memory to decode the image; make it smaller", param
        ) from None
    except Exception as error:  # Pillow raises many kinds of errors on damaged files
        raise ImageError(f"the image is damaged ({error}); save it again", param) from None


@contextlib.contextmanager
def any_image_size() -> Iterator[None]:
    """Let Pillow open an image of any size inside the block, because its user trusts it.

    Pillow's limit belongs to the process, so this is not for servers.
    """
    limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = limit


def _scale_transparent_value(opened: ImageFile.ImageFile) -> None:
    """Scale a PNG's transparent value to 8 bits, because Pillow scales only the pixels."""
    transparent = opened.info.get("transparency")
    if opened.format != "PNG" or transparent is None or not opened.tile:
        return
    raw_mode = opened.tile[0].args
    if raw_mode in ("L;2", "L;4"):
        opened.info["transparency"] = transparent * {"L;2": 85, "L;4": 17}[raw_mode]
    elif raw_mode == "RGB;16B":
        opened.info["transparency"] = tuple(value >> 8 for value in transparent)


def _turn_upright(image: Image.Image, opened: ImageFile.ImageFile) -> Image.Image:
    """Turn an image upright by its Exif orientation; ignore damaged Exif, as browsers do.

    ``ImageOps.exif_transpose`` would also rewrite all other tags, in Python.
    """
    try:
        orientation = opened.getexif().get(ExifTags.Base.Orientation, 1)
    except (SyntaxError, struct.error):
        return image
    transpose = _UPRIGHT.get(orientation)
    return image if transpose is None else image.transpose(transpose)


def to_8_bit(image: Image.Image) -> Image.Image:
    """Convert an image to 8-bit grey or RGB, with an alpha channel if needed.

    16-bit values are scaled. Raises ``ImageError`` on 32-bit values, whose range is unknown.
    """
    if image.mode.startswith("I;16"):  # Pillow would clip these at 255 instead of scaling
        values = np.asarray(image)
        converted = Image.fromarray((values >> 8).astype(np.uint8))
        transparent = image.info.get("transparency")
        if transparent is not None:
            alpha = np.where(values == transparent, 0, 255).astype(np.uint8)
            converted.putalpha(Image.fromarray(alpha))
        return converted
    if image.mode in ("I", "F"):
        raise ImageError(
            "the image has 32-bit values, whose range is unknown; save it with 8 or 16 bits"
        )
    grey = image.mode in ("1", "L", "LA", "La")
    return image.convert(_mode(1 if grey else 3, image.has_transparency_data))


def fit_image(image: Image.Image, height: int, width: int, channels: int, fit: Fit) -> Image.Image:
    """Convert an 8-bit image to a size and 1 or 3 channels, keeping transparency.

    Args:
        image: The result of ``open_image``.
        height: The wanted height.
        width: The wanted width.
        channels: 1 for grey, 3 for RGB.
        fit: ``exact`` refuses another size, ``cover`` crops the middle to the wanted shape and
            scales, ``contain`` scales and pads with transparent pixels.

    Raises:
        ImageError: If ``fit`` is ``exact`` and the size differs.
    """
    size = (width, height)
    alpha = image.has_transparency_data
    if image.size == size:
        return image.convert(_mode(channels, alpha))
    if fit == "exact":
        raise size_error(image.size, size)
    kernel = Image.Resampling.LANCZOS
    if alpha and image.width >= width and image.height >= height:
        kernel = Image.Resampling.BOX  # Lanczos rings at the edges of transparent parts
    if fit == "cover":
        return ImageOps.fit(image.convert(_mode(channels, alpha)), size, kernel)
    mode = _mode(channels, True)
    return ImageOps.pad(image.convert(mode), size, kernel, color=(0,) * len(mode))


def fit_mask(hole: NDArray[np.bool_], height: int, width: int, fit: Fit) -> NDArray[np.bool_]:
    """Resize the mask of an image's hole as ``fit_image`` resizes the image: bool ``[H, W]``.

    A pixel belongs to the hole if any part of it does, and so does the padding of ``contain``.
    """
    size = (width, height)
    mask = Image.fromarray(np.where(hole, 255, 0).astype(np.uint8))
    if mask.size == size:
        return hole
    if fit == "contain":
        mask = ImageOps.pad(mask, size, Image.Resampling.BOX, color=255)
    else:
        mask = ImageOps.fit(mask, size, Image.Resampling.BOX)
    return np.asarray(mask) > 0


def size_error(found: tuple[int, int], wanted: tuple[int, int]) -> ImageError:
    """Return the error for an image of another width and height than the model draws."""
    return ImageError(
        f"the image is {found[0]} × {found[1]} and the model draws {wanted[0]} × {wanted[1]}: "
        "send that size, or set fit to 'cover' (scale and crop to the middle) or 'contain' (scale "
        "and add a border)"
    )


def flatten_alpha(image: Image.Image) -> NDArray[np.uint8]:
    """Blend an 8-bit image with ``BACKGROUND`` and return its values: uint8 ``[H, W, C]``."""
    channels = 1 if image.mode in ("L", "LA") else 3
    if image.has_transparency_data:
        # Pillow composites only RGBA; grey values survive the conversion unchanged.
        background = Image.new("RGBA", image.size, (BACKGROUND,) * 3 + (255,))
        image = Image.alpha_composite(background, image.convert("RGBA"))
        image = image.convert(_mode(channels, False))
    return np.array(image, np.uint8).reshape(image.height, image.width, channels)


def _mode(channels: int, alpha: bool) -> str:
    return ("RGB" if channels == 3 else "L") + ("A" if alpha else "")
