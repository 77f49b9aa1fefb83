"""Serving models with softmax attention."""

from __future__ import annotations

import base64
import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from scanline.model.checkpoint import load_checkpoint
from scanline.model.decoders import memory as decoder_memory
from scanline.model.decoders.base import BackendError, InputBatch
from scanline.model.decoders.factory import create_decoder
from scanline.model.network import LinearTransformer
from scanline.model.noise import image_seed
from scanline.service.app import create_app
from scanline.service.state.app_state import AppState
from tests.conftest import random_network
from tests.model.layers.test_softmax import CONFIGS
from tests.service.fixtures import (
    GREY,
    decode_png,
    encode,
    random_picture,
    save_tiny,
    settings,
    talking_to,
)

SERVED = dataclasses.replace(GREY, attention="softmax")


def test_slots_are_limited_by_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The reported number of slots fits, one more raises, and the server reports the reason."""
    config = CONFIGS["grey"]
    network = random_network(config, dtype=torch.float32)
    each = config.n_layers * config.steps * config.d_model * 2 * 4
    monkeypatch.setattr(
        decoder_memory, "free_memory", lambda: int(5.5 * each / decoder_memory.SHARE)
    )
    assert create_decoder(network, 5, "reference").max_slots == 5
    message = "6 slots .* softmax attention keeps every key and value .* at most 5$"
    with pytest.raises(BackendError, match=message):
        create_decoder(network, 6, "reference")
    linear = LinearTransformer(dataclasses.replace(config, attention="linear"))
    with pytest.raises(BackendError, match=r"MB each; .* at most \d+$"):
        create_decoder(linear, 10**6, "reference")
    app_state = AppState(settings(backend="auto", slots=6))
    app_state.open([load_checkpoint(save_tiny(tmp_path, "large", config))])
    assert not app_state.ready
    assert app_state.failure is not None
    assert "12 slots" in app_state.failure  # six more for small requests
    assert app_state.failure.endswith("GB are available: set SCANLINE_SLOTS to 2")


def test_served_model_draws_its_images(tmp_path: Path) -> None:
    """Draw two images, guided images and a completion over HTTP from a checkpoint."""
    checkpoint = load_checkpoint(save_tiny(tmp_path, "attending", SERVED))
    assert checkpoint.model.config == SERVED
    inputs = InputBatch.empty(SERVED, 2)
    inputs.label[:] = 1
    inputs.seed[:] = [image_seed(7, j) for j in range(2)]
    expected = {}
    for guidance in (1.0, 2.0):
        inputs.guidance[:] = guidance
        inputs.twin[:] = [2, 3] if guidance != 1 else -1
        decoder = create_decoder(checkpoint.model, 4, "reference")
        decoder.begin([0, 1], inputs)
        decoder.step([0, 1], SERVED.pixels)
        expected[guidance] = decoder.canvas[:2].copy()
    assert not np.array_equal(expected[1.0], expected[2.0])

    app_state = AppState(settings(backend="auto"))

    def open_models() -> None:
        app_state.open([checkpoint])

    app = create_app(app_state, open_models)
    with talking_to(app) as client:
        for guidance, images in expected.items():
            body = {"n": 2, "seed": 7, "label": 1, "guidance": guidance}
            reply = client.post("/v1/samples", json=body)
            assert reply.status_code == 200, reply.text
            for drawn, image in zip(reply.json()["images"], images, strict=True):
                png = decode_png(base64.b64decode(drawn["png"]), SERVED)
                assert np.array_equal(png, image)
        picture = random_picture(SERVED)
        reply = client.post(
            "/v1/completions", files={"image": encode(picture)}, data={"known_rows": "3"}
        )
        assert reply.status_code == 200, reply.text
        png = decode_png(base64.b64decode(reply.json()["images"][0]["png"]), SERVED)
        known = 3 * SERVED.width
        assert np.array_equal(png[:known, 0], np.asarray(picture).ravel()[:known])
