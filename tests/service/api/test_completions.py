"""``POST /v1/completions``: uploads and replies."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pytest
from PIL import Image as Picture

from scanline.service.engine.generation import Generation, GenerationSpec
from scanline.service.engine.image import CanvasView, FinishReason
from tests.service.api.fixtures import CONFIGS, LiveServer, png, values
from tests.service.fixtures import (
    GREY,
    check_error,
    encode,
    random_picture,
)


@pytest.mark.parametrize("model", CONFIGS)
@pytest.mark.parametrize("how", ["rows", "mask", "transparent"])
def test_completions_keep_every_known_pixel(api: LiveServer, model: str, how: str) -> None:
    config = CONFIGS[model]
    picture = random_picture(config, 4)
    original = np.asarray(picture).reshape(config.pixels, config.channels)
    known = np.arange(config.pixels) < 2 * config.width
    if how != "rows":  # also in the middle
        known = known ^ (np.arange(config.pixels) % 4 == 1)
    alpha = Picture.fromarray((known * 255).astype(np.uint8).reshape(config.height, config.width))
    body: dict[str, Any] = {"model": model, "n": 4, "seed": 6}
    if how == "rows":
        reply = api.complete(encode(picture), known_rows=2, **body)
    else:
        masked = picture.convert("RGBA")
        masked.putalpha(alpha)
        if how == "mask":
            reply = api.complete(encode(picture), mask=encode(masked), **body)
        else:
            reply = api.complete(encode(masked), **body)
    assert reply.status_code == 200, reply.text
    images = [png(i, config) for i in reply.json()["images"]]
    for image in images:
        np.testing.assert_array_equal(image[known], original[known])
    assert len({image[~known].tobytes() for image in images}) > 1


@pytest.mark.parametrize("model", CONFIGS)
def test_completions_as_a_numpy_array(api: LiveServer, model: str) -> None:
    config = CONFIGS[model]
    body: dict[str, Any] = {"model": model, "n": 3, "seed": 6, "known_rows": 2}
    picture = encode(random_picture(config, 4))
    images = api.complete(picture, **body).json()["images"]
    bulk = api.complete(picture, accept="application/x-npy", **body)
    assert (bulk.headers["content-type"], bulk.headers["x-seed"]) == ("application/x-npy", "6")
    array = np.load(io.BytesIO(bulk.content), allow_pickle=False)
    assert (array.dtype, array.shape) == (
        np.uint8,
        (3, config.height, config.width, config.channels),
    )
    np.testing.assert_array_equal(
        array.reshape(3, config.pixels, config.channels), [png(image, config) for image in images]
    )


def test_cancelled_images_keep_every_known_pixel() -> None:
    canvas = np.arange(100, 100 + GREY.pixels, dtype=np.uint8)[:, None]
    known = np.arange(GREY.pixels) % 3 != 1
    generation = Generation("it", GREY, GenerationSpec(n=2, seed=0, canvas=canvas, known=known))
    first, waiting = generation.images
    slot = np.where(known[:, None], canvas, 7).astype(np.uint8)
    first.start(CanvasView(slot, np.array([10], np.int32)))
    for image in (first, waiting):
        image.finish(FinishReason.CANCELLED, None)
    expected = np.where(known[:, None], canvas, 0)
    np.testing.assert_array_equal(waiting.read(0, GREY.pixels), expected)
    expected[:10] = slot[:10]
    np.testing.assert_array_equal(first.read(0, GREY.pixels), expected)


def test_known_rows_0_draws_the_same_as_a_sample(api: LiveServer) -> None:
    completed = api.complete(encode(random_picture()), known_rows=0, seed=3, label="one").json()
    sampled = api.samples(seed=3, label=1).json()
    assert completed["images"][0]["png"] == sampled["images"][0]["png"]


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("colour", "JPEG"),
        *(("grey", kind) for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "PPM")),
    ],
)
def test_every_image_format_is_read(api: LiveServer, model: str, kind: str) -> None:
    config = CONFIGS[model]
    colour = Picture.new("RGB", (config.width, config.height), (90, 90, 90))
    reply = api.complete(encode(colour, kind), model=model, known_rows=2, output="values", seed=1)
    assert reply.status_code == 200, reply.text
    top = values(reply.json()["images"][0], config)[: 2 * config.width]
    assert np.abs(top.astype(int) - 90).max() <= 3


def test_pictures_of_another_size_are_fitted_or_refused(api: LiveServer) -> None:
    large = encode(Picture.new("RGB", (50, 60), (200, 200, 200)))
    message = check_error(api.complete(large, known_rows=2), 400, "invalid_image", "image")
    assert "50 × 60" in message
    assert "5 × 6" in message
    assert "'cover'" in message
    for fit in ("cover", "contain"):
        reply = api.complete(large, known_rows=2, fit=fit, output="values")
        top = values(reply.json()["images"][0], GREY)[:10]
        assert (top == 200).all()
    # The transparent border that `contain` adds above and below is drawn.
    wide = encode(Picture.new("RGB", (50, 10), (200, 200, 200)))
    reply = api.complete(wide, fit="contain", output="values", n=3, seed=1)
    images = [values(i, GREY).reshape(6, 5) for i in reply.json()["images"]]
    assert any((image[2:4] == 200).all(1).any() for image in images)
    assert len({image.tobytes() for image in images}) == 3


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/score"])
def test_a_body_that_is_not_a_form_is_refused(api: LiveServer, path: str) -> None:
    body = {"image": base64.b64encode(encode(random_picture())).decode(), "known_rows": 2}
    message = check_error(
        api.client.post(path, json=body), 415, "unsupported_media_type", "content-type"
    )
    assert "multipart/form-data" in message


def test_errors_name_the_right_field(api: LiveServer) -> None:
    picture = encode(random_picture())
    check_error(api.complete(picture, known_rows=6), 400, "out_of_range", "known_rows")
    check_error(api.complete(picture, mask=picture, known_rows=2), 400, "unsupported", "mask")
    check_error(api.complete(picture), 400, "missing", "image")
