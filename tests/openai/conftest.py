"""A server, and the stock client of it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import openai
import pytest

from scanline.service.server import Scanline
from tests.openai.fixtures import stock
from tests.service_fixtures import (
    COLOUR,
    GREY,
    FakeDecoder,
    build,
    listening,
)


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Scanline, str]]:
    scanline, app = build(decoders={"grey": FakeDecoder(GREY, 8), "colour": FakeDecoder(COLOUR, 8)})
    with listening(app, lambda: scanline.ready) as url:
        yield scanline, url


@pytest.fixture
def client(server: tuple[Scanline, str]) -> Iterator[openai.OpenAI]:
    with stock(server[1]) as opened:
        yield opened


@pytest.fixture
def http(server: tuple[Scanline, str]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server[1], timeout=60) as opened:
        yield opened
