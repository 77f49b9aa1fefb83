"""Helpers of the tests of the OpenAI-compatible API."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import openai
from numpy.typing import NDArray
from PIL import Image

from scanline.service.engine.generation import GenerationSpec
from tests.service.fixtures import (
    GREY,
    decode_png,
    encode,
)


def openai_client(url: str, key: str = "x") -> openai.OpenAI:
    """Return OpenAI's client, without retries; close it after use."""
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


def pixels_of(b64: str | None, config: Any = GREY) -> NDArray[np.uint8]:
    assert b64 is not None
    return decode_png(base64.b64decode(b64), config)


def masked(picture: Image.Image, paint: NDArray[np.bool_]) -> bytes:
    """Return a mask of the picture's size, transparent where ``paint`` is true."""
    mask = np.full((*paint.shape, 4), 255, np.uint8)
    mask[..., 3] = np.where(paint, 0, 255)
    assert mask.shape[:2] == (picture.height, picture.width)
    return encode(Image.fromarray(mask))


def expected_edit(picture: Image.Image, paint: NDArray[np.bool_], n: int = 1) -> GenerationSpec:
    canvas = np.asarray(picture).reshape(GREY.pixels, 1)
    return GenerationSpec(n=n, seed=9, canvas=canvas, known=~paint.reshape(-1))
