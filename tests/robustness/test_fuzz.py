"""A short run of ``tests.robustness.fuzz`` against a small server."""

from __future__ import annotations

from collections import Counter

from tests.robustness.fuzz import drop, fuzz, held
from tests.service.fixtures import build, listening, until


def test_fuzzed_and_dropped_requests_do_no_harm() -> None:
    app_state, app = build({"grace_seconds": 0.1})
    seen: Counter[str] = Counter()
    bad: list[str] = []
    with listening(app, lambda: app_state.ready) as url:
        fuzz(url, 0, 300, seen, bad)
        drop(url, 60)
        until(lambda: held(url) == 0, "nothing held")
    assert bad == []
    assert {"200", "400", "404", "405"} <= set(seen)
    assert seen.total() == 300
