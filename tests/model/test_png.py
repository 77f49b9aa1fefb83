"""Tests of reading PNG files that have chunks that are not used."""

from __future__ import annotations

import io
import zlib
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from scanline.model.data.image_folder import load_image_folder
from scanline.model.images import ImageError, open_image
from scanline.model.png import iterate_chunks, without_unused_chunks
from tests.png import png_chunk
from tests.service.fixtures import complete, encode, random_picture

LARGE = zlib.compress(bytes(2_000_000))  # Pillow unpacks at most 2**20 bytes
# Valid chunks that editors and image generators write, and damaged ones that decoders ignore.
UNUSED = {
    "compressed text": png_chunk(b"zTXt", b"prompt\0\0" + LARGE),
    "international text": png_chunk(b"iTXt", b"workflow\0\1\0\0\0" + LARGE),
    "XMP": png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + LARGE),
    "colour profile": png_chunk(b"iCCP", b"wide\0\0" + LARGE),
    "70 MB of text": png_chunk(b"tEXt", b"a\0" + bytes(700_000)) * 100,
    "short gamma": png_chunk(b"gAMA", b"\0"),
    "wrong checksum": png_chunk(b"tEXt", b"a\0b")[:-4] + bytes(4),
    "animation out of sequence": png_chunk(b"acTL", bytes(7) + b"\2")
    + png_chunk(b"fcTL", b"\0\0\0\7" + bytes(22)),
}


def with_chunk(png: bytes, chunk: bytes, where: str) -> bytes:
    at = 33 if where == "before the pixels" else len(png) - 12
    return png[:at] + chunk + png[at:]


@pytest.mark.parametrize("where", ["before the pixels", "after the pixels"])
@pytest.mark.parametrize("chunk", UNUSED.values(), ids=UNUSED.keys())
def test_unused_chunks_are_ignored(chunk: bytes, where: str) -> None:
    picture = random_picture()
    opened = open_image(io.BytesIO(with_chunk(encode(picture), chunk, where)))
    np.testing.assert_array_equal(np.asarray(opened), np.asarray(picture))


def test_chunks_that_decide_the_pixels_are_kept() -> None:
    exif = Image.Exif()
    exif[0x0112] = 3
    picture = Image.new("P", (5, 6))
    png = encode(picture, transparency=0, exif=exif)
    png = with_chunk(png, UNUSED["colour profile"], "before the pixels")
    kinds = [kind for kind, _, _ in iterate_chunks(without_unused_chunks(io.BytesIO(png)).read())]
    assert sorted(kinds) == [b"IDAT", b"IEND", b"IHDR", b"PLTE", b"eXIf", b"tRNS"]


def test_files_that_are_cut_off_are_still_damaged() -> None:
    png = with_chunk(encode(random_picture()), UNUSED["compressed text"], "before the pixels")
    for length in (20, 40, 100, png.index(b"IDAT"), png.index(b"IDAT") + 20):
        with pytest.raises(ImageError, match=r"damaged|not an image"):
            open_image(io.BytesIO(png[:length]))
    other = io.BytesIO(b"another format")
    assert without_unused_chunks(other) is other


def test_uploads_and_training_images_may_have_large_texts(
    client: httpx.Client, tmp_path: Path
) -> None:
    png = with_chunk(encode(random_picture()), UNUSED["compressed text"], "before the pixels")
    assert complete(client, png).status_code == 200
    (tmp_path / "a.png").write_bytes(png)
    assert load_image_folder(tmp_path, 4, grey=True).note == ""
