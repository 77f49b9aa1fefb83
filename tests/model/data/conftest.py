"""Fixtures of the data sets' tests."""

from __future__ import annotations

import pytest

from tests.dataset_files import hide_other_data


@pytest.fixture(autouse=True)
def _no_other_data(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide data sets of this machine from all tests but those of the real data."""
    if not request.node.name.startswith("test_real"):
        hide_other_data(monkeypatch)
