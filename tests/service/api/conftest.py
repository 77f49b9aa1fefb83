"""Servers that the API tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.service.api.fixtures import LiveServer, StepwiseDecoder, serve, stepwise_server
from tests.service.fixtures import (
    idle,
    until,
)


@pytest.fixture(scope="module")
def shared() -> Iterator[LiveServer]:
    with serve({"max_images": 20, "max_waiting": 1000, "max_upload": 1_000_000}) as server:
        yield server


@pytest.fixture
def api(shared: LiveServer) -> Iterator[LiveServer]:
    """Yield the shared server, and check afterwards that it is idle and still draws."""
    yield shared
    until(lambda: idle(shared.app_state), "an idle server")
    assert shared.samples(n=1, seed=0).status_code == 200


@pytest.fixture
def stepwise() -> Iterator[tuple[LiveServer, StepwiseDecoder]]:
    with stepwise_server() as server:
        yield server
