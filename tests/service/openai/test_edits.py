"""Edits: the transparent pixels of a mask are drawn, the others kept."""

from __future__ import annotations

import base64
import io
import json
import logging
import re
import socket
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from PIL import Image

from scanline.service.engine.generation import GenerationSpec
from tests.service.fake_decoders import fake_image
from tests.service.fixtures import GREY, check_error, encode, random_picture, until
from tests.service.openai.fixtures import expected_edit, masked, pixels_of


def test_edit_draws_the_transparent_pixels_of_the_mask(client: openai.OpenAI) -> None:
    picture, paint = random_picture(), np.zeros((6, 5), bool)
    paint[2:4, 1:3] = True
    reply = client.images.edit(
        image=encode(picture), mask=masked(picture, paint), prompt="", n=2, extra_body={"seed": 9}
    )
    assert reply.data is not None
    spec = expected_edit(picture, paint, 2)
    for j, item in enumerate(reply.data):
        drawn = pixels_of(item.b64_json)
        assert np.array_equal(drawn, fake_image(GREY, spec, j))
        assert spec.canvas is not None
        assert np.array_equal(drawn[spec.known], spec.canvas[spec.known])
    assert reply.usage is not None
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (22, 38)


def test_edit_scales_16_bits_and_refuses_tiff(client: openai.OpenAI) -> None:
    picture, paint = random_picture(), np.zeros((6, 5), bool)
    paint[3:] = True
    mask = masked(picture, paint)
    wide = Image.fromarray(np.asarray(picture).astype(np.uint16) << 8)
    reply = client.images.edit(image=encode(wide), mask=mask, prompt="", extra_body={"seed": 9})
    assert reply.data is not None
    expected = fake_image(GREY, expected_edit(picture, paint), 0)
    assert np.array_equal(pixels_of(reply.data[0].b64_json), expected)
    for image_format, mask_format, param in (("TIFF", "PNG", "image"), ("PNG", "TIFF", "mask")):
        with pytest.raises(openai.BadRequestError, match="use one of PNG, ") as refused:
            client.images.edit(
                image=encode(picture, image_format),
                mask=encode(picture, mask_format),
                prompt="",
            )
        assert (refused.value.code, refused.value.param) == ("invalid_image", param)


@pytest.mark.parametrize("factor", [1, 4])
@pytest.mark.parametrize("where", ["mask", "picture"])
def test_only_fully_transparent_pixels_are_drawn(
    client: openai.OpenAI, where: str, factor: int
) -> None:
    """In an enlarged picture, a pixel is drawn if any part of it is fully transparent."""
    alpha = np.full((6 * factor, 5 * factor), 255, np.uint8)
    alpha[: 2 * factor] = np.resize([1, 64, 127, 128, 254], alpha[: 2 * factor].shape)
    alpha[3 * factor, 2 * factor] = alpha[-1, -1] = 0
    grey = Image.new("L", alpha.shape[::-1], 90)
    sent = encode(Image.merge("LA", (grey, Image.fromarray(alpha))))
    in_mask = where == "mask"
    reply = client.images.edit(
        image=encode(grey) if in_mask else sent, mask=sent if in_mask else openai.omit, prompt="",
        n=8, extra_body={"seed": 9},
    )  # fmt: skip
    assert reply.data is not None
    drawn = np.stack([pixels_of(item.b64_json).ravel() for item in reply.data])
    assert np.flatnonzero(drawn.std(0)).tolist() == [
        17,
        29,
    ]  # known pixels are the same in all images


def test_edit_without_a_mask_draws_the_transparent_pixels_of_the_picture(
    client: openai.OpenAI,
) -> None:
    picture, paint = random_picture(), np.zeros((6, 5), bool)
    paint[3:] = True
    alpha = Image.fromarray(np.where(paint, 0, 255).astype(np.uint8))
    cut = Image.merge("LA", (picture, alpha))
    reply = client.images.edit(
        image=[("cut.png", encode(cut), "image/png")], prompt="", extra_body={"seed": 9}
    )
    assert reply.data is not None
    expected = fake_image(GREY, expected_edit(picture, paint), 0)
    assert np.array_equal(pixels_of(reply.data[0].b64_json), expected)


def test_an_enlarged_reply_can_be_edited(client: openai.OpenAI) -> None:
    drawn = client.images.generate(
        prompt="",
        size="50x60",
        extra_body={"seed": 2},
    ).data
    assert drawn is not None
    large = base64.b64decode(drawn[0].b64_json or "")
    paint = np.zeros((60, 50), bool)
    paint[35:, :] = True  # a part of the fourth row, which is drawn whole
    reply = client.images.edit(
        image=large, mask=masked(Image.open(io.BytesIO(large)), paint), prompt="",
        extra_body={"seed": 9},
    )  # fmt: skip
    assert reply.data is not None
    original = Image.fromarray(fake_image(GREY, GenerationSpec(n=1, seed=2), 0).reshape(6, 5))
    expected = fake_image(GREY, expected_edit(original, np.repeat(np.arange(6) > 2, 5)), 0)
    assert np.array_equal(pixels_of(reply.data[0].b64_json), expected)


def test_options_of_newer_clients_cause_warnings(client: openai.OpenAI) -> None:
    picture = fully_transparent(encode(random_picture()))
    reply = client.images.edit(
        image=picture, prompt="", complexity="high", frame_count=2, frame_duration_ms=100,
        markup=("m.png", picture), svg={"model": "x", "reasoning": {"effort": "low"}},
        input_fidelity="high", extra_body={"moderation": "low", "style": "vivid"},
    )  # fmt: skip
    warnings = (reply.model_extra or {})["warnings"]
    assert {warning.split(":")[0] for warning in warnings} == {
        "complexity", "frame_count", "frame_duration_ms", "markup", "svg", "input_fidelity",
        "moderation", "style",
    }  # fmt: skip


def test_unknown_fields_of_json_may_be_null(http: httpx.Client) -> None:
    picture = fully_transparent(encode(random_picture()))
    url = "data:image/png;base64," + base64.b64encode(picture).decode()
    image = {"image_url": url, "file_id": None}
    body = {"prompt": "", "images": [image], "complexity": None, "new": None}
    reply = http.post("/v1/images/edits", json=body)
    assert reply.status_code == 200, reply.text
    assert reply.json()["warnings"] == []
    check_error(
        http.post("/v1/images/edits", json=body | {"new": 1}), 400, "extra_forbidden", "new"
    )
    for images, code in (([], "missing"), ([image] * 2, "too_many")):
        reply = http.post("/v1/images/edits", json=body | {"images": images})
        check_error(reply, 400, code, "images")


def test_the_border_of_a_picture_is_not_used(client: openai.OpenAI) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (14, 17, 4), np.uint8)
    pixels[..., 3] = 255
    pixels[1:13:2, 3:13:2, 3] = 0  # the middle is 12 × 10, from row 1 and column 3
    reply = client.images.edit(image=encode(Image.fromarray(pixels)), prompt="", size="auto")
    assert reply.data is not None
    assert pixels_of(reply.data[0].b64_json).shape == (GREY.pixels, 1)
    (warning,) = (reply.model_extra or {})["warnings"]
    assert warning.startswith("image: only the middle of the picture is used, 10x12 of 17x14")
    pixels[..., 3] = 255
    pixels[0] = 0  # transparent in the border only
    with pytest.raises(openai.BadRequestError, match="nothing is transparent"):
        client.images.edit(image=encode(Image.fromarray(pixels)), prompt="")


def test_larger_pictures_are_scaled_down_by_averaging(client: openai.OpenAI) -> None:
    fine, paint = random_picture(), np.zeros((12, 10), bool)
    fine = fine.resize((10, 12), Image.Resampling.BICUBIC)
    paint[10:] = True
    reply = client.images.edit(image=encode(fine), mask=masked(fine, paint), prompt="")
    assert reply.data is not None
    means = np.asarray(fine, float).reshape(6, 2, 5, 2).mean((1, 3))
    drawn = pixels_of(reply.data[0].b64_json).reshape(6, 5)
    np.testing.assert_allclose(drawn[:5], means[:5], atol=1)  # rounded up twice


def test_json_edit_with_data_urls(http: httpx.Client) -> None:
    picture, paint = random_picture(), np.zeros((6, 5), bool)
    paint[5] = True

    def source(data: bytes) -> dict[str, str]:
        return {"image_url": f"data:image/png;base64,{base64.b64encode(data).decode()}"}

    body = {
        "prompt": "", "seed": 9, "images": [source(encode(picture))],
        "mask": source(masked(picture, paint)),
    }  # fmt: skip
    reply = http.post(
        "/v1/images/edits", content=json.dumps(body), headers={"Content-Type": "Application/JSON"}
    )
    assert reply.status_code == 200, reply.text
    expected = fake_image(GREY, expected_edit(picture, paint), 0)
    assert np.array_equal(pixels_of(reply.json()["data"][0]["b64_json"]), expected)
    whole = source(fully_transparent(encode(picture)))
    junk, plain = ({"image_url": url} for url in (whole["image_url"] + "!", "data:image/png,abcd"))
    elsewhere, more = {"image_url": "https://x.test/a.png"}, whole | {"file_id": "x"}
    for images in ([elsewhere], [{"file_id": "x"}], [more], [junk], [plain], "x", [3]):
        wrong = http.post("/v1/images/edits", json={"prompt": "", "images": images})
        check_error(wrong, 400, "invalid_image", "images")
    two = http.post("/v1/images/edits", json={"prompt": "", "images": [whole, whole]})
    check_error(two, 400, "too_many", "images")


def test_empty_mask_is_ignored(http: httpx.Client) -> None:
    """Browsers send it if no file was chosen."""
    part = b'--x\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
    image = part % (b'image"; filename="a.png', fully_transparent(encode(random_picture())))

    def send(name: bytes, mask: bytes) -> httpx.Response:
        form = image + part % (b"prompt", b"") + part % (b"mask" + name, mask) + b"--x--\r\n"
        headers = {"Content-Type": "multipart/form-data; boundary=x"}
        return http.post("/v1/images/edits", content=form, headers=headers)

    for name in (b"", b'"; filename="'):
        assert send(name, b"").status_code == 200
        check_error(send(name, b"text"), 400, "invalid_image", "mask")
    check_error(send(b'"; filename="a.png', b""), 400, "invalid_image", "mask")


def test_file_under_an_unknown_name_is_refused(http: httpx.Client) -> None:
    files = {"image": encode(random_picture()), "images": encode(random_picture())}
    reply = http.post("/v1/images/edits", data={"prompt": ""}, files=files)
    check_error(reply, 400, "extra_forbidden", "images")


def test_invalid_edits_are_refused(client: openai.OpenAI, http: httpx.Client) -> None:
    picture = random_picture()

    def refuse(message: str, image: Any, **fields: Any) -> None:
        with pytest.raises(openai.BadRequestError, match=message) as refused:
            client.images.edit(image=image, prompt=fields.pop("prompt", ""), **fields)
        assert refused.value.param in ("image", "mask", "prompt", "n")

    refuse("nothing is transparent", encode(picture))
    refuse("one picture", [encode(picture), encode(picture)])
    refuse("not an image of a supported", b"text")
    refuse("4 × 7, and the model's size is 5 × 6", encode(Image.new("L", (4, 7))))
    for size in ((2, 2), (6, 5)):  # Exif could swap the sides
        message = "the mask is {} × {}".format(*size)
        refuse(message, encode(picture), mask=encode(Image.new("LA", size)))
    refuse("understand sentences", encode(picture), prompt="a castle")
    refuse("n: ", encode(picture), n=0)
    url = "/v1/images/edits"
    check_error(http.post(url, data={"prompt": ""}), 415, "unsupported_media_type")
    check_error(http.post(url, content=b"{", headers={"content-type": "application/json"}), 400)
    check_error(http.post(url, json=[1]), 400, "json_invalid")
    check_error(http.post(url, json={"prompt": ""}), 400, "missing", "images")
    files = {"image": encode(picture)}
    check_error(http.post(url, data={"hat": "x", "prompt": ""}, files=files), 400, param="hat")
    check_error(http.post(url, data={}, files=files), 400, "missing", "prompt")
    twice = http.post(url, data={"prompt": "", "n": ["1", "2"]}, files=files)
    assert "must be a single text field" in check_error(twice, 400, param="n")
    masks = [("mask", encode(picture)) for _ in range(2)]
    twice = http.post(url, data={"prompt": ""}, files=[*files.items(), *masks])
    check_error(twice, 400, "too_many", "mask")
    check_error(http.post(url, data={"image": "x"}, files={"mask": b""}), 400, param="image")


@pytest.mark.parametrize("kind", ["multipart/form-data; boundary=b", "application/json"])
def test_disconnect_while_sending_an_edit_is_not_logged_as_an_error(
    http: httpx.Client, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    def disconnects() -> float:
        found = re.search(r'edits",status="499"} (\S+)', http.get("/metrics").text)
        return float(found[1]) if found else 0.0

    before = disconnects()
    head = f"POST /v1/images/edits HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\n"
    port = http.base_url.port
    assert port is not None
    with socket.create_connection((http.base_url.host, port)) as connection:
        connection.sendall(f"{head}Content-Length: 99\r\nExpect: 100-continue\r\n\r\n".encode())
        assert connection.recv(99).startswith(b"HTTP/1.1 100 ")  # the server waits for the body
    until(lambda: disconnects() == before + 1, "the disconnect")
    assert [r for r in caplog.records if r.levelno >= logging.ERROR] == []


def test_json_edit_refuses_strings_for_numbers(http: httpx.Client) -> None:
    """In a form all values are strings, and empty ones count as left out."""
    picture = encode(random_picture())
    url = "data:image/png;base64," + base64.b64encode(picture).decode()
    body: dict[str, Any] = {"prompt": "", "model": "grey", "images": [{"image_url": url}]}
    for fields in ({"n": "2"}, {"n": True}, {"stream": "no"}):
        reply = http.post("/v1/images/edits", json=body | fields)
        check_error(reply, 400, param=next(iter(fields)))
    form = {"prompt": "", "model": "grey", "n": "", "size": "", "label": ""}
    reply = http.post("/v1/images/edits", files={"image": fully_transparent(picture)}, data=form)
    assert reply.status_code == 200, reply.text


def fully_transparent(picture: bytes) -> bytes:
    """Return the picture with all pixels transparent."""
    image = Image.open(io.BytesIO(picture)).convert("RGBA")
    image.putalpha(0)
    return encode(image)
