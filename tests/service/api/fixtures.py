"""Server in the test process with a client, and reference results."""

from __future__ import annotations

import base64
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from scanline.model.config import ModelConfig
from scanline.model.decoders.base import InputBatch
from scanline.model.decoders.reference import ReferenceDecoder
from scanline.model.noise import image_seed
from scanline.service.engine.generation import GenerationSpec
from scanline.service.state.app_state import AppState
from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import (
    COLOUR,
    GREY,
    build,
    decode_png,
    idle,
    talking_to,
    tiny_model,
    until,
)

CONFIGS = {"grey": GREY, "colour": COLOUR}


@dataclass(frozen=True)
class LiveServer:
    """Server in the test process, with a client."""

    app_state: AppState
    client: httpx.Client
    url: str

    def samples(self, **body: Any) -> httpx.Response:
        return self.client.post("/v1/samples", json=body)

    def complete(
        self, picture: bytes, mask: bytes | None = None, accept: str = "*/*", **fields: Any
    ) -> httpx.Response:
        files = {"image": ("picture.png", picture)}
        if mask is not None:
            files["mask"] = ("mask.png", mask)
        data = {name: str(value) for name, value in fields.items()}
        return self.client.post(
            "/v1/completions", files=files, data=data, headers={"Accept": accept}
        )


@contextlib.contextmanager
def serve(fields: dict[str, Any] | None = None, **decoders: Any) -> Iterator[LiveServer]:
    """Run a server with the given settings and decoders."""
    app_state, app = build(fields, decoders or None)
    with talking_to(app) as client:
        yield LiveServer(app_state, client, str(client.base_url).rstrip("/"))


class StepwiseDecoder(FakeDecoder):
    """Decoder that draws one pixel of each image per permit, and everything once opened."""

    def __init__(self) -> None:
        super().__init__(GREY, 4)
        self.permits, self.opened = threading.Semaphore(0), threading.Event()

    def step(self, slots: Any, n: int) -> None:
        if self.opened.is_set():
            super().step(slots, n)
        elif self.permits.acquire(timeout=0.001):
            super().step(slots, 1)

    def permit(self, pixels: int) -> None:
        for _ in range(pixels):
            self.permits.release()


@contextlib.contextmanager
def stepwise_server(**fields: Any) -> Iterator[tuple[LiveServer, StepwiseDecoder]]:
    """Run a server whose decoder needs a permit per pixel, until the block ends."""
    decoder = StepwiseDecoder()
    with serve(fields, fake=decoder) as api:
        try:
            yield api, decoder
        finally:
            decoder.opened.set()
            until(lambda: idle(api.app_state), "an idle server")


def png(image: dict[str, Any], config: ModelConfig) -> NDArray[np.uint8]:
    return decode_png(base64.b64decode(image["png"], validate=True), config)


def values(image: dict[str, Any], config: ModelConfig) -> NDArray[np.uint8]:
    return np.array(image["values"], np.uint8).reshape(config.pixels, config.channels)


def draw_reference(config: ModelConfig, spec: GenerationSpec, index: int) -> NDArray[np.uint8]:
    """Draw one image with a reference decoder, without an engine."""
    decoder = ReferenceDecoder(tiny_model(config), 1)
    inputs = InputBatch.empty(config, 1)
    inputs.seed[0] = image_seed(spec.seed, index)
    spec.sampling.write_to(inputs, 0, spec.sampling.label)
    decoder.begin([0], inputs)
    decoder.step([0], config.pixels)
    pixels: NDArray[np.uint8] = decoder.canvas[0].copy()
    return pixels
