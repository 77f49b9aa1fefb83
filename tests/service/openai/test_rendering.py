"""Sizes of rendered images: the limit per reply, and the border."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

from scanline.service.http.errors import ApiError
from scanline.service.openai.rendering import choose_rendering
from scanline.service.openai.requests import GenerationsRequest
from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import GREY, build, check_error, talking_to


@pytest.mark.parametrize(
    ("n", "partials", "fits"), [(5, 0, True), (6, 0, False), (1, 3, True), (2, 2, False)]
)
def test_pixels_per_reply_are_limited(n: int, partials: int, fits: bool) -> None:
    square = replace(GREY, height=20, width=20)
    body = GenerationsRequest(
        prompt="", n=n, size="2000x2000", stream=True, partial_images=partials
    )
    expected = contextlib.nullcontext() if fits else pytest.raises(ApiError, match="at most 5 of")
    with expected:
        choose_rendering(body, square)


def test_pixels_per_reply_are_limited_if_the_image_is_not_enlarged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The image of a large model is placed in the frame at its own size."""
    monkeypatch.setattr("scanline.service.openai.rendering.MAX_PIXELS", 3 * 256**2)
    config = replace(GREY, height=200, width=200)
    decoder = FakeDecoder(config, 4)
    _, app = build({"max_images": 256}, {"large": decoder})
    with talking_to(app) as client:
        body = {"prompt": "", "model": "large", "size": "256x256", "n": 4}
        refused = check_error(client.post("/v1/images/generations", json=body), 400, "too_many")
        assert "ask for at most 3 of this size" in refused
        # Without a stream, partial images have no effect and do not count.
        alone = body | {"n": 1, "partial_images": 3}
        assert client.post("/v1/images/generations", json=alone).status_code == 200


def test_images_of_model_size_have_no_pixel_limit() -> None:
    own = replace(GREY, height=1024, width=1024)
    for size in ("auto", "1024x1024"):
        rendering = choose_rendering(GenerationsRequest(prompt="", n=30, size=size), own)
        assert rendering.frame == (1024, 1024, 1)


@pytest.mark.parametrize("size", ["1024x1536", "1536x1024"])
def test_border_causes_a_warning(size: str) -> None:
    square = replace(GREY, height=32, width=32)
    (warning,) = choose_rendering(GenerationsRequest(prompt="", size=size), square).warnings
    assert warning.startswith("size: the model's size is 32x32")
    assert f"to 1024x1024, in the middle of {size}" in warning
