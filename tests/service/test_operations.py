"""Tests of metrics, the access log, API keys, limits per caller, and proxies."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import yaml
from pydantic import ValidationError

from scanline.service import __version__
from scanline.service.http.addresses import client_address, client_network
from scanline.service.logs import JsonFormatter
from scanline.service.settings import Settings
from scanline.service.state import AppState
from tests.conftest import ROOT
from tests.service.fixtures import (
    GREY,
    FakeDecoder,
    build,
    check_error,
    encode,
    held_server,
    listening,
    random_picture,
    talking_to,
    until,
)
from tests.sse_client import parse_sse


@pytest.fixture
def held() -> Iterator[tuple[AppState, httpx.Client, threading.Event]]:
    """Yield a server whose decoder has one slot, and draws nothing until released."""
    with held_server(1, {"max_waiting": 8, "max_images": 4}) as held:
        yield held


def value(client: httpx.Client, metric: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith(f"{metric} ")), 0.0)


def test_alerts_use_existing_metrics() -> None:
    rules = re.search(r"```yaml\n(groups:.*?)```", (ROOT / "docs/operations.md").read_text(), re.S)
    assert rules
    (group,) = yaml.safe_load(rules[1])["groups"]
    expressions = " ".join(rule["expr"] for rule in group["rules"])
    names = set(re.findall(r"scanline_\w+", expressions))
    reasons = re.findall(r'reason=~"([^"]+)"', expressions)[0].split("|")
    _, app = build()
    with talking_to(app) as client:
        client.post("/v1/samples", json={"n": 1})
        text = client.get("/metrics").text
    assert len(names) == 5
    for name in names:
        assert re.search(rf"^{name}[{{ ]", text, re.M), name
    for reason in reasons:
        assert f'scanline_refused_total{{reason="{reason}"}}' in text


def test_request_metrics() -> None:
    _, app = build()
    with talking_to(app) as client:
        client.post("/v1/samples", json={"n": 3})
        for method in ("PURGE", "PATCH"):  # neither gets a time series of its own
            client.request(method, "/v1/models")
        text = client.get("/metrics").text
    for line in (
        'scanline_generation_seconds_count{model="grey"} 1.0',
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


def test_refusals_are_counted_by_error_code(
    held: tuple[AppState, httpx.Client, threading.Event],
) -> None:
    app_state, client, _ = held
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
        assert value(client, f'scanline_refused_total{{reason="{reason}"}}') == count, reason


def test_a_stuck_step_fails_the_health_checks(
    held: tuple[AppState, httpx.Client, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scanline.service.engine.engine.STUCK_SECONDS", 0.05)
    _, client, go_on = held
    begun = client.post("/v1/samples", json={}, headers={"Prefer": "respond-async"})
    until(lambda: client.get("/livez").status_code == 503)
    why = check_error(client.get("/livez"), 503, "not_ready")
    assert "the engine of grey is stuck: restart the server" in why
    assert "no engine of grey is running" in check_error(client.get("/readyz"), 503, "not_ready")
    go_on.set()
    until(lambda: client.get("/livez").text == "ok\n")
    until(lambda: client.get(begun.headers["location"]).json()["status"] == "finished")
    assert client.get("/readyz").text == "ready\n"


def test_open_streams_are_counted(
    held: tuple[AppState, httpx.Client, threading.Event],
) -> None:
    _, client, go_on = held
    body = {"stream": True}
    with client.stream("POST", "/v1/samples", json=body) as one:
        with client.stream("POST", "/v1/samples", json=body):
            until(lambda: value(client, "scanline_open_streams") == 2)
        until(lambda: value(client, "scanline_open_streams") == 1)
        go_on.set()
        one.read()
    until(lambda: value(client, "scanline_open_streams") == 0)


def test_a_waiting_stream_reports_its_queue_position_repeatedly(
    held: tuple[AppState, httpx.Client, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scanline.service.api.events.WAITING_SECONDS", 0.05)
    app_state, client, go_on = held
    queue = app_state.models["grey"].engine.queue
    for n in (3, 1):
        client.post("/v1/samples", json={"n": n}, headers={"Prefer": "respond-async"})
    until(lambda: queue.waiting == 3)
    queue.rate = 10.0  # images per …: one takes three seconds, so the third waits nine
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


# --- the access log -----------------------------------------------------------------------------


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
    held: tuple[AppState, httpx.Client, threading.Event], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="scanline.access")
    _, client, go_on = held
    client.post("/v1/samples", json={"n": 0})
    client.post("/v1/samples", json={"one\nline": 0})
    with client.stream("POST", "/v1/samples", json={"stream": True}) as stream:
        read = stream.iter_raw()  # its garbage collection would close the connection
        next(read)
        until(lambda: value(client, 'scanline_queue_seconds_count{model="grey"}') == 1)
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


# --- keys, shares, proxies ----------------------------------------------------------------------


def test_several_api_keys_each_have_a_name() -> None:
    app_state, app = build({"api_key": "one, zwei ,öß"})
    with listening(app, lambda: app_state.ready) as url:

        def ask(key: str, scheme: str = "Bearer") -> httpx.Response:
            given = f"{scheme} {key}".encode()
            headers = [(b"Authorization", given), (b"Idempotency-Key", b"k")]
            return httpx.post(f"{url}/v1/samples", json={}, headers=headers, timeout=60)

        ids = [ask(key).json()["id"] for key in ("one", "zwei", "öß", "one")]
        assert len(set(ids)) == 3
        assert ids[0] == ids[3]
        assert ask("one", "bearer").status_code == 200
        assert ask("  one").status_code == 200  # RFC 9110 allows several blanks
        for wrong in ("x", "one,zwei", "on", "one2", "three"):
            check_error(ask(wrong), 401, "invalid_api_key")
        check_error(ask("one", "Basic"), 401, "invalid_api_key")


def test_idempotency_keys_are_separate_per_caller() -> None:
    """Without API keys, the caller is the client's address."""
    app_state, app = build({"trusted_proxies": "127.0.0.1"})
    with listening(app, lambda: app_state.ready) as url:

        def ask(address: str, n: int) -> httpx.Response:
            headers = {"X-Forwarded-For": address, "Idempotency-Key": "1"}
            return httpx.post(f"{url}/v1/samples", json={"n": n}, headers=headers, timeout=60)

        first, other = ask("192.0.2.1", 1), ask("192.0.2.2", 2)
        assert (first.status_code, other.status_code) == (200, 200)
        assert ask("192.0.2.1", 1).json()["id"] == first.json()["id"]
        check_error(ask("192.0.2.1", 2), 422, "idempotency_key_reused")


@pytest.mark.parametrize("keys", ["a,b", ""])
def test_images_in_flight_are_limited_per_caller(keys: str) -> None:
    decoder, go_on = FakeDecoder(GREY, 2), threading.Event()
    decoder.before_step = lambda slots: (go_on.wait(), None)[1]
    fields = {
        "api_key": keys, "max_images": 4, "max_images_per_caller": 5, "trusted_proxies": "127.0.0.1"
    }  # fmt: skip
    app_state, app = build(fields, {"grey": decoder})
    with listening(app, lambda: app_state.ready) as url, ThreadPoolExecutor(4) as pool:

        def ask(who: str, n: int) -> httpx.Response:
            address = {"a": "192.0.2.1", "b": "192.0.2.2"}[who]
            headers = {"Authorization": f"Bearer {who}", "X-Forwarded-For": address}
            body = {"n": n}
            return httpx.post(f"{url}/v1/samples", json=body, headers=headers, timeout=60)

        first = pool.submit(ask, "a", 4)
        engine = app_state.models["grey"].engine
        until(lambda: engine.queue.waiting == 2)
        refused = ask("a", 2)
        message = check_error(refused, 429, "too_many_in_flight")
        assert "you have 4 images in flight, and the limit is 5" in message
        assert refused.headers["retry-after"] == "1"
        others = [pool.submit(ask, "a", 1), pool.submit(ask, "b", 4)]
        until(lambda: engine.queue.waiting == 7)
        go_on.set()
        assert {one.result().status_code for one in (first, *others)} == {200}
        assert ask("a", 4).status_code == 200  # finished images do not count


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


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"api_key": "a,,b"}, "contains a blank key"),
        ({"trusted_proxies": "nginx"}, "nginx"),
        ({"frame_ancestors": "https://日本.example"}, "日本.example' is not \\* or an origin"),
        ({"frame_ancestors": "https://a.example;script-src *"}, "is not \\* or an origin"),
        ({"max_images": 20, "max_images_per_caller": 10}, "at least max_images 20"),
    ],
)
def test_invalid_settings_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Settings(**fields)


@pytest.mark.parametrize(
    ("address", "whose"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("::FFFF:c000:207", "192.0.2.7"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_an_ipv6_network_is_one_caller(address: str, whose: str) -> None:
    assert client_network(address) == whose


@pytest.mark.parametrize(
    ("client", "address"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("fe80::1%\x9b31mred", "fe80::1"),
        ("\x9b31mred", ""),
        ("a" * 20_000, ""),
    ],
)
def test_forwarded_addresses_are_validated(client: str, address: str) -> None:
    assert client_address(client) == address
