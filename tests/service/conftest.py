"""Server fixtures of several test packages."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import httpx
import pytest

from scanline.service.state.app_state import AppState
from tests.service.fixtures import held_server


@pytest.fixture
def held() -> Iterator[tuple[AppState, httpx.Client, threading.Event]]:
    """Run a server without grace time, whose decoder is blocked until the event is set."""
    with held_server(2, {"grace_seconds": 0.0, "max_waiting": 8, "max_images": 8}) as held:
        yield held


@pytest.fixture
def held_slot() -> Iterator[tuple[AppState, httpx.Client, threading.Event]]:
    """Run a server with one slot, whose decoder is blocked until the event is set."""
    with held_server(1, {"max_waiting": 8, "max_images": 4}) as held:
        yield held
