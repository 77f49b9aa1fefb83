"""Servers that tests of the API share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.api.fixtures import Held, Here, held, serve
from tests.service_fixtures import (
    idle,
    until,
)


@pytest.fixture(scope="module")
def shared() -> Iterator[Here]:
    yield from serve({"max_images": 20, "max_waiting": 1000, "max_upload": 1_000_000})


@pytest.fixture
def here(shared: Here) -> Iterator[Here]:
    """Give the shared server, and check afterwards that it serves and holds nothing."""
    yield shared
    until(lambda: idle(shared.scanline), "an idle server")
    assert shared.samples(n=1, seed=0).status_code == 200


@pytest.fixture
def holding() -> Iterator[tuple[Here, Held]]:
    yield from held()
