"""Tests of the limits on decoding uploads."""

from __future__ import annotations

import io
import json
import struct
import warnings
import zlib

import httpx
import numpy as np
import pytest
from PIL import Image

from scanline.model.images import ImageError
from scanline.service import upload_limits
from scanline.service.images import read_image
from scanline.service.logs import set_up_logs
from scanline.service.upload_limits import open_upload
from tests.png import png_chunk
from tests.robustness.attacks.payloads import plain_ppm
from tests.service.fixtures import (
    GREY,
    check_error,
    complete,
    encode,
    logs_kept,
    random_picture,
)


def test_images_are_refused_by_their_headers(client: httpx.Client) -> None:
    def cut(width: int, height: int) -> bytes:
        return encode(Image.new("L", (width, height)))[:200]  # without its pixels

    exact = check_error(complete(client, cut(1900, 1900), "exact"), 400, "invalid_image")
    assert "1900 × 1900" in exact
    assert "send that size" in exact
    large = check_error(complete(client, cut(2100, 2100)), 400, "invalid_image")
    assert "more than 4,194,304" in large
    assert complete(client, encode(Image.new("1", (2000, 2000)))).status_code == 200
    mask = client.post(
        "/v1/completions", files={"image": encode(random_picture()), "mask": cut(900, 900)}
    )
    says = check_error(mask, 400, "invalid_image", "mask")
    assert "the mask is 900 × 900" in says
    assert says.endswith("it must be 5 × 6 (the model's size)")  # which is also the image's
    edit = client.post(
        "/v1/images/edits", files={"image": cut(2500, 1500)}, data={"prompt": "", "model": "grey"}
    )
    assert "2500 × 1500" in check_error(edit, 400, "invalid_image")


@pytest.mark.filterwarnings("default")
def test_pillow_warnings_are_muted(capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise each would be printed, and Python would keep each distinct text."""
    with logs_kept():
        set_up_logs("json", "info")
        warnings.warn("of ours", stacklevel=1)
        for width in (10_000, 10_001, 10_002):
            header = b"IHDR" + struct.pack(">IIBBBBB", width, 10_000, 8, 0, 0, 0, 0)
            start = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header
            picture = start + struct.pack(">I", zlib.crc32(header)) + b"\0\0\0\1IDAT"
            with pytest.raises(ImageError, match="more than 4,194,304"):
                open_upload(io.BytesIO(picture))
        lines = capsys.readouterr().err.splitlines()
    assert "of ours" in json.loads(lines[0])["message"]
    assert len(lines) == 1
    assert vars(Image).get("__warningregistry__", {}).keys() <= {"version"}


def test_slow_formats_are_refused(client: httpx.Client) -> None:
    slow = check_error(complete(client, plain_ppm(300)), 400, "invalid_image")
    assert "takes too long to read; save it as PNG" in slow
    assert complete(client, plain_ppm(256)).status_code == 200
    commented = plain_ppm(100)
    assert complete(client, commented + 900 * b"#\n").status_code == 200
    reply = complete(client, commented + 1100 * b"#\n")
    assert "takes too long to read" in check_error(reply, 400, "invalid_image")
    binary = b"P6\n64 32\n35\n" + b"#" * 64 * 32 * 3  # pixels that look like comments
    assert complete(client, binary).status_code == 200
    plain = encode(random_picture(), "JPEG")
    film = plain + 300 * b"\xff\xda\xff\xe1"  # phones append a video
    assert complete(client, film).status_code == 200
    for count, status in ((250, 200), (260, 400)):
        segmented = plain[:2] + count * b"\xff\xe1\0\x08Exif\0\0" + plain[2:]
        assert complete(client, segmented).status_code == status
    progressive = encode(random_picture().resize((64, 64)), "JPEG", progressive=True)
    last = progressive.rindex(b"\xff\xda")
    many = progressive[:last] + progressive[last:-2] * 100 + progressive[-2:]
    assert "scans" in check_error(complete(client, many), 400, "invalid_image")
    assert complete(client, progressive).status_code == 200


def test_images_with_too_many_parts_are_refused(client: httpx.Client) -> None:
    """Pillow iterates over the parts in Python, before it knows the image's size."""
    png = encode(random_picture().resize((64, 64)))
    chunk = png_chunk(b"teSt", b"")
    for place in (33, len(png) - 12):  # before the pixels, and after
        for count, status in ((9_000, 200), (10_000, 400)):
            reply = complete(client, png[:place] + chunk * count + png[place:])
            assert reply.status_code == status
        assert "the PNG has over 10,000 chunks" in check_error(reply, 400, "invalid_image")
    for side in (1, 64, 1900):  # encoders write blocks of 255 bytes
        noise = np.random.default_rng(0).integers(0, 256, (side, side), np.uint8)
        assert complete(client, encode(Image.fromarray(noise), "GIF")).status_code == 200
    gif = encode(random_picture(), "GIF")
    end = gif.rindex(b";")
    for junk in (b"!\xfe\0" * 12_000, b"!\xfe" + b"\1a" * 12_000 + b"\0", b"\0" * 12_000):
        refused = complete(client, gif[:end] + junk + gif[end:])
        assert "unusually small blocks" in check_error(refused, 400, "invalid_image")
    assert complete(client, gif[:end] + b"!\xfe\1a\0" * 1000 + gif[end:]).status_code == 200
    semicolons = encode(
        Image.fromarray(np.array([[0, 1, 2, 59]], np.uint8)), "GIF"
    )  # a palette that looks like trailers
    junk = b"!\xfe" + b"\1a" * 12_000 + b"\0"
    assert complete(client, semicolons[:-1] + junk + b";").status_code == 400
    for cut in (6, 10, 12, 20, end):  # truncated anywhere
        assert complete(client, gif[:cut]).status_code in (200, 400)


def test_data_before_the_pixels_is_limited(client: httpx.Client) -> None:
    """Pillow reads padding and Exif in Python."""

    def png(*chunks: tuple[bytes, bytes]) -> bytes:
        plain = encode(random_picture())
        return plain[:33] + b"".join(png_chunk(kind, data) for kind, data in chunks) + plain[33:]

    def exif(size: int) -> bytes:
        tags = Image.Exif()
        tags[0x0112], tags[0x9999] = 1, bytes(size)
        return tags.tobytes()

    def longer(size: int) -> tuple[bytes, bytes]:
        return b"eXIf", exif(size)[6:]

    jpeg = encode(random_picture(), "JPEG")
    segment = b"\xff\xe1\xff\xff" + exif(65_000).ljust(65_533, b"\0")
    pgm = b"P5\n%b28 28\n255\n" + bytes(784)
    for fine, refused, why in (
        (png(longer(900)), png(*[longer(900)] * 9), "chunks of Exif"),
        (png(longer(262_000)), png(longer(263_000)), "bytes of Exif"),
        (jpeg, encode(random_picture(), "WEBP", exif=exif(263_000)), "bytes of Exif"),
        (jpeg[:2] + segment * 4 + jpeg[2:], jpeg[:2] + segment * 5 + jpeg[2:], "bytes of Exif"),
        (jpeg, jpeg[:2] + b"\xff\xd9" * 5_100 + jpeg[2:], "padded"),
        (jpeg, jpeg[:2] + b"\xff\xf0\xff\xff" + bytes(65_533) + jpeg[2:], "padded"),
        (jpeg[:2] + b"\xff" * 999 + jpeg[2:], jpeg[:2] + b"\xff" * 10_100 + jpeg[2:], "padded"),
        (jpeg[:2] + b"\xff\0" * 999 + jpeg[2:], jpeg[:2] + b"\xff\0" * 5_100 + jpeg[2:], "padded"),
        (pgm % b"#a 1 2\n # b\r", pgm % (b"#" + 10_100 * b"a" + b"\n"), "header is too long"),
        (pgm % (b" " * 999), pgm % (b" " * 10_100), "header is too long"),
        (pgm % (b"#\n" * 999), pgm % (b"#\n" * 5_100), "header is too long"),
        (pgm % b"", b"P5 28 28" + b" " * 10_100 + b"255 " + bytes(784), "header is too long"),
        (b"P4\n28 28\n" + bytes(112), b"P4 28 " + b"\n" * 10_100 + b"28\n", "header is too long"),
        (pgm % b"", b"Pf 28" + b" " * 10_100 + b"28 1 " + bytes(3136), "header is too long"),
    ):
        assert complete(client, fine).status_code == 200, why
        assert why in check_error(complete(client, refused), 400, "invalid_image")


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_long_exif_is_refused_before_pillow_reads_it(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pillow copies a JPEG's segments repeatedly, and reads chunks after a PNG's pixels last."""
    plain = encode(random_picture(), kind)
    segment = b"\xff\xe1\xff\xffExif\0\0" + bytes(65_527)
    late = plain[:-12] + png_chunk(b"eXIf", bytes(263_000)) + plain[-12:]
    monkeypatch.setattr(upload_limits, "open_image", lambda *_: pytest.fail("was read"))
    with pytest.raises(ImageError, match="bytes of Exif"):
        open_upload(io.BytesIO(late if kind == "PNG" else plain[:2] + segment * 5 + plain[2:]))


def test_a_large_jpeg_is_scaled_down_while_decoded(client: httpx.Client) -> None:
    grey = Image.linear_gradient("L").resize((4000, 3000))
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by 90°
    assert complete(client, encode(grey, "JPEG", exif=exif)).status_code == 200
    assert complete(client, encode(grey.resize((4200, 4200)), "JPEG")).status_code == 400
    photo = encode(grey, "JPEG")
    reply = client.post("/v1/score", files={"image": photo}, data={"fit": "cover"}).json()
    small = encode(grey.resize((50, 60)))
    other = client.post("/v1/score", files={"image": small}, data={"fit": "cover"}).json()
    assert reply["data"][0]["bits_per_dim"] == pytest.approx(
        other["data"][0]["bits_per_dim"], rel=0.1
    )


def test_scaling_down_hardly_changes_the_values() -> None:
    stripes = np.indices((8 * GREY.height, 8 * GREY.width)).sum(0) // 6 % 2 * 255
    picture = Image.fromarray(stripes.astype(np.uint8))
    exact, photo = (
        read_image(io.BytesIO(encode(picture, kind, **more)), GREY, "cover").astype(int)
        for kind, more in (("PNG", {}), ("JPEG", {"quality": 100}))
    )
    assert abs(photo - exact).max() <= 2


def test_a_jpeg_that_is_not_scaled_down_has_the_usual_limit() -> None:
    photo = encode(Image.new("L", (2100, 2100)), "JPEG")
    assert open_upload(io.BytesIO(photo), needed=1000).size == (1050, 1050)
    for needed in (2000, None):
        with pytest.raises(ImageError, match="more than 4,194,304"):
            open_upload(io.BytesIO(photo), needed=needed)
