"""Tests of metrics and health checks."""

from __future__ import annotations

import re
import threading

import httpx
import pytest

from scanline.service import __version__
from scanline.service.state.app_state import AppState
from tests.service.fixtures import build, check_error, metric_value, talking_to, until


def test_request_metrics() -> None:
    _, app = build()
    with talking_to(app) as client:
        client.post("/v1/samples", json={"n": 3})
        for method in ("PURGE", "PATCH"):  # neither gets a time series of its own
            client.request(method, "/v1/models")
        ended = 'scanline_generation_seconds_count{model="grey"}'
        until(lambda: metric_value(client, ended) == 1)  # counted after the reply
        text = client.get("/metrics").text
    for line in (
        'scanline_generation_seconds_count{model="colour"} 0.0',
        'scanline_request_seconds_count{method="POST",route="/v1/samples"} 1.0',
        'scanline_requests_total{method="POST",route="/v1/samples",status="200"} 1.0',
        'scanline_requests_total{method="other",route="/v1/models",status="405"} 2.0',
        'scanline_refused_total{reason="queue_full"} 0.0',
        "scanline_open_streams 0.0",
        "scanline_connections 1.0",
        'scanline_waiting_work{kind="score"} 0.0',
        'scanline_slots_in_use{model="grey"} 0.0',
    ):
        assert line in text, f"{line}\n\n{text}"
    assert re.search(rf'scanline_build_info{{.*version="{re.escape(__version__)}"}} 1.0', text)
    for name in ("process_resident_memory_bytes", "process_open_fds", "process_cpu_seconds_total"):
        assert f"\n{name} " in text
    assert "_created" not in text


def test_metrics_describe_the_served_models(monkeypatch: pytest.MonkeyPatch) -> None:
    app_state, app = build()
    with talking_to(app) as client:
        loaded = app_state.models["grey"]
        labels = f'backend="reference",model="grey",weights="{loaded.checkpoint.digest[:10]}"'
        assert metric_value(client, f"scanline_model_info{{{labels}}}") == 1
        assert metric_value(client, 'scanline_model_slow{model="grey"}') == 0
        monkeypatch.setattr(loaded.engine, "slow", True)
        assert metric_value(client, 'scanline_model_slow{model="grey"}') == 1


def test_redrawn_images_are_counted() -> None:
    app_state, app = build()
    with talking_to(app) as client:
        app_state.metrics.observer("grey").redrawn(3)
        assert metric_value(client, 'scanline_redrawn_images_total{model="grey"}') == 3


def test_waiting_tasks_are_counted_by_kind() -> None:
    app_state, app = build()
    pools = {
        "score": app_state.score_pool, "upload": app_state.upload_pool,
        "reply": app_state.encode_pool, "enlarge": app_state.large_encode_pool,
    }  # fmt: skip
    with talking_to(app) as client:
        for waiting, pool in enumerate(pools.values(), 1):
            pool.queued = waiting
        for waiting, kind in enumerate(pools, 1):
            assert metric_value(client, f'scanline_waiting_work{{kind="{kind}"}}') == waiting


def test_refused_probes_are_not_counted_as_refused_requests() -> None:
    app_state, app = build()
    with talking_to(app) as client:
        app_state.draining = True
        check_error(client.get("/readyz"), 503, "not_ready")
        app_state.draining = False
        assert 'reason="not_ready"' not in client.get("/metrics").text


def test_refusals_are_counted_by_error_code(
    held_slot: tuple[AppState, httpx.Client, threading.Event],
) -> None:
    app_state, client, _ = held_slot
    for _ in range(3):
        client.post("/v1/samples", json={"n": 4}, headers={"Prefer": "respond-async"})
        # Before the first image has a slot, a caller may not have eight images waiting.
        until(lambda: app_state.models["grey"].engine.slots_in_use == 1)
    client.post("/v1/samples", json={"n": 0})
    client.post("/v1/samples", content=b"x", headers={"Content-Encoding": "gzip"})
    client.get("/v1/generations/none")
    for reason, count in (
        ("queue_full", 1), ("greater_than_equal", 1), ("unsupported_encoding", 1),
        ("generation_not_found", 1), ("too_many_in_flight", 0),
    ):  # fmt: skip
        assert metric_value(client, f'scanline_refused_total{{reason="{reason}"}}') == count, reason


def test_a_stuck_step_fails_the_health_checks(
    held_slot: tuple[AppState, httpx.Client, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scanline.service.engine.engine.STUCK_SECONDS", 0.05)
    _, client, go_on = held_slot
    begun = client.post("/v1/samples", json={}, headers={"Prefer": "respond-async"})
    until(lambda: client.get("/livez").status_code == 503)
    why = check_error(client.get("/livez"), 503, "not_ready")
    assert "the engine of grey is stuck: restart the server" in why
    assert "no engine of grey is running" in check_error(client.get("/readyz"), 503, "not_ready")
    monkeypatch.undo()
    go_on.set()
    until(lambda: client.get("/livez").text == "ok\n")
    until(lambda: client.get(begun.headers["location"]).json()["status"] == "finished")
    assert client.get("/readyz").text == "ready\n"


def test_open_streams_are_counted(
    held_slot: tuple[AppState, httpx.Client, threading.Event],
) -> None:
    _, client, go_on = held_slot
    body = {"stream": True}
    with client.stream("POST", "/v1/samples", json=body) as one:
        with client.stream("POST", "/v1/samples", json=body):
            until(lambda: metric_value(client, "scanline_open_streams") == 2)
        until(lambda: metric_value(client, "scanline_open_streams") == 1)
        go_on.set()
        one.read()
    until(lambda: metric_value(client, "scanline_open_streams") == 0)
