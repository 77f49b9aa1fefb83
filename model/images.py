"""Pictures as people have them, read the one way that training and uploads share.

Upright, 8 bits a value, fitted to a size, and what is transparent laid on ``BACKGROUND``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageFile, ImageOps, UnidentifiedImageError

# Named, so that no file can reach Pillow's less guarded readers (EPS starts Ghostscript).
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
_PHOTOMETRIC = 262  # TIFF's tag
# How a picture is turned upright, by its Exif orientation.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
BACKGROUND = 0  # black, as behind the shipped models' digits

Fit = Literal["exact", "cover", "contain"]


class ImageError(ValueError):
    """A picture that cannot be used; the message says why and what to send instead.

    ``param`` is the field at fault, ``image``, ``mask`` or ``known_rows``, ``code`` its kind.
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
    """Read a picture, turned upright by its EXIF tag; of an animation, the first frame.

    Its mode is ``L`` or ``RGB``, with ``A`` where anything may be transparent. ``check`` is shown
    the picture before any of it is decoded, and may raise. Raises ``ImageError`` on no image, one
    of other ``formats``, or a damaged one.
    """
    try:
        opened = Image.open(file, formats=formats)
        if check is not None:
            check(opened)
        _scale_transparent_value(opened)
        opened.load()
        picture: Image.Image = opened
        if picture.format == "PPM" and picture.mode == "I":  # which has 16 bits, not 32
            picture = picture.convert("I;16")
        plain = to_8_bit(_turn_upright(picture, opened))
        # A TIFF may have 0 for white, which Pillow turns round in one of 8 bits alone.
        white_is_0 = getattr(opened, "tag_v2", {}).get(_PHOTOMETRIC) == 0
        return ImageOps.invert(plain) if white_is_0 and opened.mode.startswith("I;16") else plain
    except ImageError as error:
        raise ImageError(str(error), param) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise ImageError("the picture is far too large; make it smaller", param) from None
    except UnidentifiedImageError:
        raise ImageError(
            f"the file is no picture of a kind known here; use one of {', '.join(formats)}", param
        ) from None
    except Exception as error:  # Pillow's readers raise anything at all on damaged files
        raise ImageError(f"the picture is damaged ({error}); save it again", param) from None


def _scale_transparent_value(opened: ImageFile.ImageFile) -> None:
    """Scale a PNG's transparent value to 8 bits, as Pillow will the others, but not this one."""
    clear = opened.info.get("transparency")
    if opened.format != "PNG" or clear is None or not opened.tile:
        return
    kind = opened.tile[0].args
    if kind in ("L;2", "L;4"):
        opened.info["transparency"] = clear * {"L;2": 85, "L;4": 17}[kind]
    elif kind == "RGB;16B":
        opened.info["transparency"] = tuple(value >> 8 for value in clear)


def _turn_upright(picture: Image.Image, opened: ImageFile.ImageFile) -> Image.Image:
    """Turn a picture by its Exif; where that is damaged it stays as it is, as in a browser.

    Pillow's own way writes all other tags anew, in Python.
    """
    try:
        orientation = opened.getexif().get(ExifTags.Base.Orientation, 1)
    except (SyntaxError, struct.error):
        return picture
    way = _UPRIGHT.get(orientation)
    return picture if way is None else picture.transpose(way)


def to_8_bit(picture: Image.Image) -> Image.Image:
    """Give a picture in 8 bits a value as grey or RGB, with an alpha channel if it needs one.

    16 bits are scaled to 8; 32 bits, which have no known range, raise ``ImageError``.
    """
    if picture.mode.startswith("I;16"):  # Pillow would cut these off at 255, not scale them
        values = np.asarray(picture)
        plain = Image.fromarray((values >> 8).astype(np.uint8))
        clear = picture.info.get("transparency")
        if clear is not None:
            plain.putalpha(Image.fromarray(np.where(values == clear, 0, 255).astype(np.uint8)))
        return plain
    if picture.mode in ("I", "F"):
        raise ImageError(
            "the picture's 32-bit values have no known range; save it with 8 or 16 bits"
        )
    grey = picture.mode in ("1", "L", "LA", "La")
    return picture.convert(_mode(1 if grey else 3, picture.has_transparency_data))


def fit_image(
    picture: Image.Image, height: int, width: int, channels: int, fit: Fit
) -> Image.Image:
    """Give a plain picture a size and 1 or 3 channels, what is transparent kept so.

    ``exact`` refuses another size, ``cover`` crops the middle to the shape wanted and scales,
    ``contain`` scales and leaves the rest transparent. Raises ``ImageError``.
    """
    size = (width, height)
    alpha = picture.has_transparency_data
    if picture.size == size:
        return picture.convert(_mode(channels, alpha))
    if fit == "exact":
        raise size_error(picture.size, size)
    kernel = Image.Resampling.LANCZOS
    if alpha and picture.width >= width and picture.height >= height:
        kernel = Image.Resampling.BOX  # the other one rings where a part is cut out
    if fit == "cover":
        return ImageOps.fit(picture.convert(_mode(channels, alpha)), size, kernel)
    mode = _mode(channels, True)
    return ImageOps.pad(picture.convert(mode), size, kernel, color=(0,) * len(mode))


def fit_mask(hole: NDArray[np.bool_], height: int, width: int, fit: Fit) -> NDArray[np.bool_]:
    """Give what is cut out of a picture a size, bool ``[H, W]``, as ``fit_image`` does the rest.

    Of it is each pixel that has a part in it, and what ``contain`` leaves.
    """
    size = (width, height)
    shares = Image.fromarray(np.where(hole, 255, 0).astype(np.uint8))
    if shares.size == size:
        return hole
    if fit == "contain":
        shares = ImageOps.pad(shares, size, Image.Resampling.BOX, color=255)
    else:
        shares = ImageOps.fit(shares, size, Image.Resampling.BOX)
    return np.asarray(shares) > 0


def size_error(found: tuple[int, int], wanted: tuple[int, int]) -> ImageError:
    """Say that a picture, of a width and a height, is not what the model draws."""
    return ImageError(
        f"the picture is {found[0]} × {found[1]} and the model draws {wanted[0]} × {wanted[1]}: "
        "send that size, or set fit to 'cover' (scale, and crop the middle) or 'contain' (scale, "
        "and leave a border)"
    )


def flatten_alpha(picture: Image.Image) -> NDArray[np.uint8]:
    """Lay a plain picture on ``BACKGROUND``, and give its values: uint8 ``[H, W, C]``."""
    channels = 1 if picture.mode in ("L", "LA") else 3
    if picture.has_transparency_data:
        # Pillow composes RGBA only; grey goes there and back unchanged.
        below = Image.new("RGBA", picture.size, (BACKGROUND,) * 3 + (255,))
        picture = Image.alpha_composite(below, picture.convert("RGBA"))
        picture = picture.convert(_mode(channels, False))
    return np.array(picture, np.uint8).reshape(picture.height, picture.width, channels)


def _mode(channels: int, alpha: bool) -> str:
    return ("RGB" if channels == 3 else "L") + ("A" if alpha else "")
