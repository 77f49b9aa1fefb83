"""Tests of waiting for a generation."""

from __future__ import annotations

import threading

import httpx
import pytest

from scanline.service.state.app_state import AppState
from tests.service.fixtures import until
from tests.sse_client import parse_sse


def test_a_waiting_stream_reports_its_queue_position_repeatedly(
    held_slot: tuple[AppState, httpx.Client, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scanline.service.api.events.WAITING_SECONDS", 0.05)
    app_state, client, go_on = held_slot
    queue = app_state.models["grey"].engine.queue
    for n in (3, 1):
        client.post("/v1/samples", json={"n": n}, headers={"Prefer": "respond-async"})
    until(lambda: queue.waiting == 3)
    queue.rate = 10.0  # pixels per second: three seconds per image, so the third waits nine
    raw = b""
    with client.stream("POST", "/v1/samples", json={"stream": True, "seed": 1}) as stream:
        for part in stream.iter_raw():
            raw += part
            if raw.count(b"event: waiting") >= 2:
                go_on.set()
    events = parse_sse(raw)
    places = [event.data for event in events if event.name == "waiting"]
    assert events[0].data["queue_position"] == 2
    assert places[0]["queue_position"] == 2
    assert places[0]["estimated_seconds"] == 9.0
    assert all(event.id is None for event in events if event.name == "waiting")
    assert events[-1].name == "completed"
    # Once it is drawn, it has no position any more.
    raw = client.get(f"/v1/generations/{events[0].data['id']}/events").content
    assert parse_sse(raw)[0].data["queue_position"] == 0
