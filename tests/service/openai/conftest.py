"""A server, OpenAI's client, and a plain HTTP client."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import openai
import pytest

from scanline.service.state.app_state import AppState
from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import COLOUR, GREY, build, listening
from tests.service.openai.fixtures import openai_client


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[AppState, str]]:
    app_state, app = build(
        decoders={"grey": FakeDecoder(GREY, 8), "colour": FakeDecoder(COLOUR, 8)}
    )
    with listening(app, lambda: app_state.ready) as url:
        yield app_state, url


@pytest.fixture
def client(server: tuple[AppState, str]) -> Iterator[openai.OpenAI]:
    with openai_client(server[1]) as opened:
        yield opened


@pytest.fixture
def http(server: tuple[AppState, str]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server[1], timeout=60) as opened:
        yield opened
