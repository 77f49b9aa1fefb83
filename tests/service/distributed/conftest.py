"""Fixtures of all tests of replicas, which run in the tests' own process."""

from __future__ import annotations

import pytest

from scanline.service.distributed import replica


@pytest.fixture(autouse=True)
def replica_logs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Keep replicas from replacing pytest's log handlers, and return what they would set."""
    chosen: list[tuple[str, str]] = []
    monkeypatch.setattr(replica, "set_up_logs", lambda *choice: chosen.append(choice))
    return chosen
