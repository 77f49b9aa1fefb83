"""Decoding of image files to canvases."""

from __future__ import annotations

import io
import random
import struct
import warnings
import zlib
from typing import Any, get_args

import numpy as np
import pytest
from PIL import Image as Picture

from scanline.model.images import (
    FORMATS,
    Fit,
    ImageError,
    fit_image,
    open_image,
    to_8_bit,
)
from scanline.service.images import (
    read_image,
    read_masked_image,
    to_canvas,
)
from tests.png import png_chunk
from tests.service.fixtures import COLOUR, GREY, encode, random_picture

MODES = [
    "1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV",
    "I", "I;16", "I;16B", "F",
]  # fmt: skip


def canvas_of(data: bytes, colour: bool = False, fit: Fit = "exact") -> Any:
    return read_image(io.BytesIO(data), COLOUR if colour else GREY, fit)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fit", get_args(Fit))
def test_every_mode_and_size_is_fitted_or_rejected(mode: str, fit: Fit) -> None:
    for config in (GREY, COLOUR):
        for size in ((5, 6), (3, 4), (1, 1), (300, 1), (1, 300)):
            same = size == (config.width, config.height)
            if mode in ("I", "F") or (fit == "exact" and not same):
                with pytest.raises(ImageError, match=r"send that size|save it"):
                    to_canvas(to_8_bit(Picture.new(mode, size)), config, fit)
                continue
            canvas = to_canvas(to_8_bit(Picture.new(mode, size)), config, fit)
            assert canvas.shape == (config.pixels, config.channels)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "PPM", "GIF", "WEBP"])
def test_lossless_formats_keep_values(kind: str) -> None:
    options = {"lossless": True} if kind == "WEBP" else {}
    for config in (GREY, COLOUR):
        if config is COLOUR and kind == "GIF":
            continue  # palette without all colours
        picture = random_picture(config)
        data = canvas_of(encode(picture, kind, **options), config is COLOUR)
        expected = np.asarray(picture).reshape(config.pixels, config.channels)
        np.testing.assert_array_equal(data, expected)


def test_grey_colour_and_palette_are_equivalent() -> None:
    grey = random_picture(GREY)
    expected = np.asarray(grey).reshape(-1, 1)
    for mode in ("L", "LA", "RGB", "RGBA", "P"):
        np.testing.assert_array_equal(canvas_of(encode(grey.convert(mode))), expected)
    two = grey.point(lambda value: 255 * (value > 127))
    one_bit = canvas_of(encode(two.convert("1")))
    np.testing.assert_array_equal(one_bit, np.asarray(two).reshape(-1, 1))


def test_16_bits_are_scaled_not_clipped() -> None:
    values = np.linspace(0, 65_535, GREY.pixels).astype(np.uint16)
    picture = Picture.fromarray(values.reshape(GREY.height, GREY.width))
    for kind in ("PNG", "PPM"):
        np.testing.assert_array_equal(canvas_of(encode(picture, kind))[:, 0], values >> 8)
    black_is_0, white_is_0 = (
        np.asarray(open_image(io.BytesIO(encode(picture, "TIFF", tiffinfo=tags)))).ravel()
        for tags in ({}, {262: 0})
    )
    np.testing.assert_array_equal(black_is_0, values >> 8)
    np.testing.assert_array_equal(white_is_0, 255 - (values >> 8))
    hole = int(values[7])
    canvas, known = read_masked_image(
        io.BytesIO(encode(picture, "PNG", transparency=hole)), None, None, "exact", GREY
    )
    assert np.flatnonzero(~known).tolist() == [7]
    expected = np.where(known, values >> 8, 0)
    np.testing.assert_array_equal(canvas[:, 0], expected)


def test_32_bits_are_rejected() -> None:
    for dtype in (np.int32, np.float32):
        picture = Picture.fromarray(np.zeros((6, 5), dtype))
        with pytest.raises(ImageError, match="8 or 16 bits"):
            open_image(io.BytesIO(encode(picture, "TIFF")))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int) -> None:
    upright = random_picture(GREY)
    turn = {
        2: Picture.Transpose.FLIP_LEFT_RIGHT, 3: Picture.Transpose.ROTATE_180,
        4: Picture.Transpose.FLIP_TOP_BOTTOM, 5: Picture.Transpose.TRANSPOSE,
        6: Picture.Transpose.ROTATE_90, 7: Picture.Transpose.TRANSVERSE,
        8: Picture.Transpose.ROTATE_270,
    }  # fmt: skip
    stored = upright.transpose(turn[orientation]) if orientation in turn else upright
    exif = Picture.Exif()
    exif[0x0112] = orientation
    data = canvas_of(encode(stored, "PNG", exif=exif))
    np.testing.assert_array_equal(data, np.asarray(upright).reshape(-1, 1))


def test_every_form_of_transparency_is_recognised() -> None:
    grey = Picture.new("L", (5, 6), 9)
    grey.putpixel((0, 0), 200)
    hole = Picture.new("L", (5, 6), 255)
    hole.putpixel((0, 0), 0)
    with_alpha = grey.convert("RGBA")
    with_alpha.putalpha(hole)
    forms = {
        "alpha": encode(with_alpha),
        "grey and alpha": encode(with_alpha.convert("LA")),
        "a value": encode(grey, transparency=200),
        "a colour": encode(grey.convert("RGB"), transparency=(200, 200, 200)),
        "palette": encode(grey.convert("P"), transparency=200),
        "GIF": encode(with_alpha, "GIF"),
        "WebP": encode(with_alpha, "WEBP", lossless=True),
    }
    for name, data in forms.items():
        canvas, known = read_masked_image(io.BytesIO(data), None, None, "exact", GREY)
        assert known.tolist() == [False] + [True] * 29, name
        assert canvas.ravel().tolist() == [0] + [9] * 29, name


@pytest.mark.parametrize(
    "exif", [b"", b"Exif\0\0", b"MM\0*\0\0", b"II*\0\xff\xff\xff\xff", bytes(99)]
)
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")  # from Pillow
def test_damaged_exif_is_ignored(kind: str, exif: bytes) -> None:
    picture = random_picture(GREY)
    plain, damaged = (canvas_of(encode(picture, kind, **more)) for more in ({}, {"exif": exif}))
    np.testing.assert_array_equal(damaged, plain)


@pytest.mark.parametrize(("bits", "second"), [(1, 0), (2, 170), (4, 238), (8, 254), (16, 255)])
def test_transparent_value_of_a_png_of_any_depth(bits: int, second: int) -> None:
    """Pillow scales the pixels to 8 bits, but not the transparent value."""
    top = 2**bits - 1
    values = np.zeros((6, 5), ">u2")
    values[0, 0], values[0, 1] = top, top - 1
    if bits == 16:
        lines = [line.tobytes() for line in values]
    elif bits == 8:
        lines = [line.astype(np.uint8).tobytes() for line in values]
    else:
        each = (values[..., None] >> np.arange(bits - 1, -1, -1) & 1).reshape(6, -1)
        lines = [np.packbits(line.astype(np.uint8)).tobytes() for line in each]
    canvas, known = read_masked_image(
        io.BytesIO(png_of(bits, 0, lines, struct.pack(">H", top))), None, None, "exact", GREY
    )
    assert known.tolist() == [False] + [True] * 29
    assert canvas.ravel().tolist() == [0, second] + [0] * 28


def test_transparent_16_bit_colour() -> None:
    values = np.full((6, 5, 3), 0x1234, ">u2")
    values[2, 3] = clear = (0x0100, 0x0200, 0x0300)
    data = png_of(16, 2, [line.tobytes() for line in values], struct.pack(">3H", *clear))
    _, known = read_masked_image(io.BytesIO(data), None, None, "exact", GREY)
    assert np.flatnonzero(~known).tolist() == [2 * 5 + 3]


def png_of(bits: int, colours: int, lines: list[bytes], clear: bytes) -> bytes:
    """Write a PNG of 5 × 6 pixels in a form that Pillow cannot write."""
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", 5, 6, bits, colours, 0, 0, 0)), (b"tRNS", clear),
        (b"IDAT", zlib.compress(b"".join(b"\0" + line for line in lines))), (b"IEND", b""),
    )  # fmt: skip
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(kind, data) for kind, data in parts)


def test_half_transparent_pixels_are_known_and_blended() -> None:
    picture = Picture.new("LA", (5, 6), (200, 128))
    picture.putpixel((4, 5), (200, 0))
    canvas, known = read_masked_image(io.BytesIO(encode(picture)), None, None, "exact", GREY)
    assert known.tolist() == [True] * 29 + [False]
    assert set(canvas.ravel()[:29].tolist()) == {100}


def test_cover_crops_and_contain_pads() -> None:
    wide = Picture.new("L", (100, 12), 50)
    wide.paste(250, (30, 0, 70, 12))
    covered = canvas_of(encode(wide), fit="cover").reshape(6, 5)
    assert (covered == 250).all()
    contained = fit_image(wide, GREY.height, GREY.width, GREY.channels, "contain")
    alpha = np.asarray(contained)[..., 1]
    assert {tuple(row) for row in alpha.tolist()} == {(0,) * 5, (255,) * 5}
    assert 0 < (alpha == 255).all(1).sum() < 6


def test_damaged_files_raise_only_image_errors() -> None:
    """Thousands of corrupted files either load or raise ``ImageError``."""
    draw = random.Random(0)
    exif = Picture.Exif()
    exif[0x0112], exif[0x010E] = 6, "hello"
    picture = random_picture(COLOUR).resize((16, 16))
    seeds = [
        encode(picture, kind, **({"exif": exif} if kind not in ("GIF", "BMP", "PPM") else {}))
        for kind in FORMATS
        if kind != "TIFF"  # libtiff prints to standard error
    ]
    seeds += [
        encode(picture.quantize(8), "PNG", transparency=0),
        encode(picture.quantize(8), "BMP"),
    ]
    outcomes = {"read": 0, "refused": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in seeds:
            for _ in range(250):
                data = bytearray(seed)
                for _ in range(draw.choice((1, 2, 16))):
                    place = draw.randrange(min(len(data), draw.choice((40, 200, 10**6))))
                    match draw.randrange(4):
                        case 0 if place:
                            del data[place:]
                        case 1 if len(data) > 9:
                            del data[place : place + draw.randrange(1, 5)]
                        case _:
                            data[place] = draw.choice((0, 1, 127, 128, 255))
                    data = data or bytearray(b"x")
                try:
                    read_masked_image(io.BytesIO(bytes(data)), None, 1, "cover", GREY)
                    outcomes["read"] += 1
                except ImageError:
                    outcomes["refused"] += 1
    assert min(outcomes.values()) > 100, outcomes
