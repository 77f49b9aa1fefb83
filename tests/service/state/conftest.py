"""A server whose models are replaced while it runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scanline.model.decoders.base import Slots
from scanline.model.decoders.reference import ReferenceDecoder
from scanline.service.state import registry as model_registry
from tests.service.fixtures import reloading_server
from tests.service.state.fixtures import Server


@pytest.fixture
def serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., contextlib.AbstractContextManager[Server]]:
    """Return a function that serves the models of a folder."""
    monkeypatch.setattr(model_registry, "SUBMIT_SECONDS", 0.05)
    gate = threading.Event()

    class GatedDecoder(ReferenceDecoder):
        def step(self, slots: Slots, n: int) -> None:
            gate.wait()
            super().step(slots, n)

    monkeypatch.setattr(
        model_registry, "create_decoder", lambda model, slots, *_: GatedDecoder(model, slots)
    )

    @contextlib.contextmanager
    def run(**fields: Any) -> Iterator[Server]:
        gate.set()
        with reloading_server(tmp_path, **fields) as (app_state, reloader, client):
            try:
                yield Server(tmp_path, app_state, reloader, client, gate)
            finally:
                gate.set()

    return run
