"""Tests of the access log."""

from __future__ import annotations

import json
import logging
import re
import threading
from typing import Any

import httpx
import pytest

from scanline.service.logs import JsonFormatter
from scanline.service.state.app_state import AppState
from tests.service.fixtures import (
    build,
    encode,
    listening,
    metric_value,
    random_picture,
    talking_to,
    until,
)


@pytest.mark.parametrize("how", ["samples", "stream", "completions", "openai", "file"])
def test_the_access_log_names_the_generation_and_the_key(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="scanline.access")
    app_state, app = build({"api_key": "a"})
    headers = {"Authorization": "Bearer a"}
    with (
        listening(app, lambda: app_state.ready) as url,
        httpx.Client(base_url=url, headers=headers, timeout=60) as client,
    ):
        match how:
            case "samples":
                client.post("/v1/samples", json={"n": 2})
            case "stream":
                client.post("/v1/samples", json={"n": 2, "stream": True})
            case "completions":
                files = {"image": encode(random_picture())}
                client.post("/v1/completions", files=files, data={"known_rows": 1, "n": 2})
            case "openai":
                client.post("/v1/images/generations", json={"prompt": "", "n": 2})
            case "file":
                client.get("/v1/samples/grey/1.png")
        until(lambda: caplog.records)
    (record,) = caplog.records
    line: dict[str, Any] = json.loads(JsonFormatter().format(record))
    assert re.fullmatch("gen_[0-9a-f]{24}", line["generation"])
    assert (line["model"], line["n"]) == ("grey", 1 if how == "file" else 2)
    assert (line["client"], line["status"]) == ("127.0.0.1", 200)
    assert line["outcome"] == "length"
    assert "code" not in line
    assert re.fullmatch("key_[0-9a-f]{8}", line["key"])
    plain = record.getMessage()
    assert f" 127.0.0.1 {line['request_id']} {line['generation']} grey n={line['n']}" in plain
    assert plain.endswith(" length")
    assert "Bearer" not in plain


def test_the_access_log_has_error_codes_and_the_state_of_abandoned_generations(
    held_slot: tuple[AppState, httpx.Client, threading.Event], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="scanline.access")
    _, client, go_on = held_slot
    client.post("/v1/samples", json={"n": 0})
    client.post("/v1/samples", json={"one\nline": 0})
    with client.stream("POST", "/v1/samples", json={"stream": True}) as stream:
        read = stream.iter_raw()  # its garbage collection would close the connection
        next(read)
        until(lambda: metric_value(client, 'scanline_queue_seconds_count{model="grey"}') == 1)
    until(lambda: len(caplog.records) == 3)
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    told = [{name: line.get(name) for name in ("code", "param", "outcome")} for line in lines]
    assert told == [
        {"code": "greater_than_equal", "param": "n", "outcome": None},
        {"code": "extra_forbidden", "param": "one\nline", "outcome": None},
        {"code": None, "param": None, "outcome": "running"},
    ]
    assert caplog.records[0].getMessage().endswith(" greater_than_equal n")
    assert caplog.records[1].getMessage().endswith(" extra_forbidden one%0Aline")
    go_on.set()


def test_forwarded_addresses_are_trusted_from_trusted_proxies_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="scanline.access")
    for trusted, client in (("", "127.0.0.1"), ("10.0.0.0/8", "127.0.0.1"),
                            ("127.0.0.0/8, 192.0.2.9", "192.0.2.7")):  # fmt: skip
        caplog.clear()
        app_state, app = build({"trusted_proxies": trusted})
        with listening(app, lambda one=app_state: one.ready) as url:  # type: ignore[misc]
            # The client may have written the first address itself.
            forwarded = {"X-Forwarded-For": "203.0.113.1, 192.0.2.7, 192.0.2.9"}
            httpx.get(f"{url}/v1/models", headers=forwarded, timeout=60)
            until(lambda: caplog.records)
        assert [record.client for record in caplog.records] == [client]  # type: ignore[attr-defined]


def test_a_client_without_an_address_keeps_the_position_of_the_fields(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="scanline.access")
    _, app = build({"trusted_proxies": "*"})
    with talking_to(app) as client:
        client.get("/v1/models", headers={"X-Forwarded-For": "unknown", "X-Request-ID": "mine"})
        until(lambda: caplog.records)
    assert caplog.records[0].getMessage().endswith(" ms - mine")
