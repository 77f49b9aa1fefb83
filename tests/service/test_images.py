"""Masks of uploads, image grids and PNG encoding."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image as Picture

from scanline.model.config import ModelConfig
from scanline.model.images import Fit, ImageError
from scanline.service.images import (
    read_masked_image,
    to_grid,
    to_png,
)
from tests.service.fixtures import COLOUR, GREY, decode_png, encode, random_picture


def test_known_pixels_come_from_rows_then_mask_then_alpha() -> None:
    holes = Picture.new("LA", (5, 6), (7, 255))
    holes.putpixel((0, 0), (0, 0))
    mask = Picture.new("LA", (5, 6), (0, 255))
    mask.putpixel((1, 0), (0, 0))
    mask.putpixel((2, 0), (0, 1))  # partly transparent: known

    def known(rows: int | None, with_mask: bool) -> list[int]:
        file = io.BytesIO(encode(mask)) if with_mask else None
        _, which = read_masked_image(io.BytesIO(encode(holes)), file, rows, "exact", GREY)
        unknown: list[int] = np.flatnonzero(~which).tolist()
        return unknown

    assert known(5, False) == [25, 26, 27, 28, 29]
    assert known(0, False) == list(range(30))
    assert known(None, True) == [1]
    assert known(None, False) == [0]


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
@pytest.mark.parametrize("fit", ["cover", "contain"])
@pytest.mark.parametrize("turned", [False, True])
def test_mask_of_the_images_size_is_fitted_with_it(kind: str, fit: Fit, turned: bool) -> None:
    """Also if a JPEG is decoded at a smaller size or turned."""
    picture = Picture.new("L", (80, 72), 90)
    mask = Picture.new("LA", picture.size, (0, 255))
    mask.paste((0, 0), (20, 30, 40, 50))
    cut = picture.copy()
    cut.putalpha(mask.getchannel("A"))
    exif = Picture.Exif()
    if turned:
        exif[0x0112] = 6  # rotated by 90°
        picture = picture.transpose(Picture.Transpose.ROTATE_90)
    sent = io.BytesIO(encode(picture, kind, exif=exif))
    _, known = read_masked_image(sent, io.BytesIO(encode(mask)), None, fit, GREY)
    _, expected = read_masked_image(io.BytesIO(encode(cut)), None, None, fit, GREY)
    assert known.tolist() == expected.tolist()
    assert 0 < known.sum() < known.size
    # As required for more than 4 megapixels.
    smaller = mask.resize((40, 36), Picture.Resampling.NEAREST)
    sent.seek(0)
    _, known = read_masked_image(sent, io.BytesIO(encode(smaller)), None, fit, GREY)
    assert known.tolist() == expected.tolist()
    other = io.BytesIO(encode(Picture.new("LA", (72, 80))))
    with pytest.raises(
        ImageError, match=r"5 × 6 \(the model's size\), or 80 × 72 \(the image's size\)"
    ):
        read_masked_image(io.BytesIO(encode(picture, kind, exif=exif)), other, None, fit, GREY)


def test_smaller_mask_with_rounded_sides_is_accepted() -> None:
    picture = encode(Picture.new("L", (81, 73), 90))
    for size in ((40, 36), (41, 37), (20, 18)):
        clear = io.BytesIO(encode(Picture.new("LA", size)))
        assert not read_masked_image(io.BytesIO(picture), clear, None, "cover", GREY)[1].any()
    for size in ((40, 38), (42, 36)):
        clear = io.BytesIO(encode(Picture.new("LA", size)))
        with pytest.raises(ImageError, match="possibly scaled down"):
            read_masked_image(io.BytesIO(picture), clear, None, "cover", GREY)


@pytest.mark.parametrize("fit", ["cover", "contain"])
@pytest.mark.parametrize("config", [GREY, COLOUR], ids=["grey", "colour"])
def test_hole_of_a_larger_image_is_scaled_with_it(config: ModelConfig, fit: Fit) -> None:
    hole = np.zeros((config.height, config.width), bool)
    hole[2:4, 1:4] = True
    cut = random_picture(config)
    cut.putalpha(Picture.fromarray(np.where(hole, 0, 255).astype(np.uint8)))
    large = cut.resize((4 * config.width, 4 * config.height), Picture.Resampling.NEAREST)
    large.putpixel((0, 0), (0,) * len(large.getbands()))  # part of the first pixel
    expected, _ = read_masked_image(io.BytesIO(encode(cut)), None, None, "exact", config)
    canvas, known = read_masked_image(io.BytesIO(encode(large)), None, None, fit, config)
    hole[0, 0] = True
    np.testing.assert_array_equal(known, ~hole.ravel())
    np.testing.assert_array_equal(canvas[known], expected[known])


def test_padding_of_contain_is_drawn_too() -> None:
    wide = Picture.new("LA", (100, 60), (90, 255))
    wide.paste((0, 0), (0, 0, 20, 20))
    _, known = read_masked_image(io.BytesIO(encode(wide)), None, None, "contain", GREY)
    kept = known.reshape(6, 5)
    assert not kept[[0, 1, 5]].any()
    assert kept[2].tolist() == [False, True, True, True, True]
    assert kept[3:5].all()


def test_image_grid_shape_and_scale() -> None:
    images = [np.full((GREY.pixels, 1), 10 * j, np.uint8) for j in range(7)]
    grid = Picture.open(io.BytesIO(to_grid(images, GREY, scale=3)))
    assert grid.size == (3 * (3 * 7 - 2), 3 * (3 * 8 - 2))
    values = np.asarray(grid)
    assert np.unique(values).tolist() == [0, 10, 20, 30, 40, 50, 60, 96]
    assert (values[: 3 * 6, 3 * 7 : 3 * 12] == 10).all()
    assert (values[-3 * 6 :, -3 * 5 :] == 96).all()  # empty cells
    one = to_grid(images[:1], GREY)
    np.testing.assert_array_equal(decode_png(one, GREY), images[0])


def test_png_round_trip() -> None:
    for config in (GREY, COLOUR):
        pixels = np.asarray(random_picture(config)).reshape(config.pixels, config.channels)
        np.testing.assert_array_equal(decode_png(to_png(pixels, config), config), pixels)
