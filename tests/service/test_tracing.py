"""Traces: the spans of a request, and none without configuration."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.datastructures import Headers

from scanline.model.checkpoint import Checkpoint
from scanline.model.decoders.native import NativeDecoder
from scanline.model.decoders.reference import ReferenceDecoder
from scanline.service.app import create_app
from scanline.service.logs import JsonFormatter
from scanline.service.state.app_state import AppState
from scanline.service.tracing import TraceIds, Tracing, start_tracing
from tests.service.fixtures import encode, random_picture, settings, talking_to, tiny_model, until

pytest.importorskip("opentelemetry.sdk.trace")

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import (
    InMemorySpanExporter,
)
from opentelemetry.trace import StatusCode

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADERS = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def client(exporter: InMemorySpanExporter) -> Iterator[httpx.Client]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    app_state = AppState(settings(), Tracing(provider))
    model = Checkpoint("it", tiny_model())
    with talking_to(create_app(app_state, lambda: app_state.open([model]))) as client:
        yield client


def spans(exporter: InMemorySpanExporter, *names: str) -> dict[str, Any]:
    """Return the spans by name, once those of these names have ended."""
    until(lambda: {*names} <= {span.name for span in exporter.get_finished_spans()}, str(names))
    return {span.name: span for span in exporter.get_finished_spans()}


def test_completion_has_a_span_of_each_part(
    client: httpx.Client, exporter: InMemorySpanExporter
) -> None:
    files = {"image": encode(random_picture())}
    reply = client.post("/v1/completions", files=files, data={"known_rows": "2"}, headers=HEADERS)
    assert reply.status_code == 200
    names = {"POST /v1/completions", "read upload", "queue", "prefill", "draw", "encode"}
    found = spans(exporter, *names)
    whole = found["POST /v1/completions"]
    assert set(found) == names
    assert all(f"{span.context.trace_id:032x}" == TRACE for span in found.values())
    assert f"{whole.parent.span_id:016x}" == PARENT
    assert all(
        one.parent.span_id == whole.context.span_id for one in found.values() if one is not whole
    )
    assert whole.attributes["http.response.status_code"] == 200
    assert whole.attributes["http.route"] == "/v1/completions"
    assert whole.attributes["scanline.request_id"] == reply.headers["x-request-id"]
    assert found["draw"].attributes["scanline.generation"] == reply.json()["id"]
    assert found["draw"].attributes["scanline.pixels"] == 20
    for parts in (("queue", "prefill", "draw"), ("read upload", "encode")):
        times = [t for name in parts for t in (found[name].start_time, found[name].end_time)]
        assert times == sorted(times)
    assert whole.start_time <= found["read upload"].start_time
    assert found["encode"].end_time <= whole.end_time


def test_stream_has_one_span_until_its_end(
    client: httpx.Client, exporter: InMemorySpanExporter
) -> None:
    client.post("/v1/samples", json={"stream": True, "n": 2})
    found = spans(exporter, "POST /v1/samples", "queue", "draw")
    assert set(found) == {"POST /v1/samples", "queue", "draw"}
    assert found["POST /v1/samples"].parent is None
    assert found["draw"].attributes["scanline.images"] == 2


def test_operators_routes_have_no_spans(
    client: httpx.Client, exporter: InMemorySpanExporter
) -> None:
    client.get("/readyz")
    client.get("/metrics")
    client.get("/v1/generations/none")
    found = spans(exporter, "GET /v1/generations/{identifier}")
    assert set(found) == {"GET /v1/generations/{identifier}"}


def test_failures_are_marked(
    client: httpx.Client, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise RuntimeError("broken")

    for kind in (NativeDecoder, ReferenceDecoder):
        monkeypatch.setattr(kind, "step", fail)
    assert client.post("/v1/samples", json={}).status_code == 500
    found = spans(exporter, "POST /v1/samples", "draw")
    codes = {name: found[name].status.status_code for name in ("POST /v1/samples", "queue", "draw")}
    assert set(codes.values()) == {StatusCode.ERROR}


def test_log_lines_have_the_ids_of_the_trace(
    client: httpx.Client, exporter: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.handler.addFilter(TraceIds(Tracing(TracerProvider())))
    with caplog.at_level(logging.INFO, "scanline.access"):
        client.post("/v1/samples", json={}, headers=HEADERS)
        until(lambda: any(one.name == "scanline.access" for one in caplog.records), "a log line")
    record = next(one for one in caplog.records if one.name == "scanline.access")
    line = json.loads(JsonFormatter().format(record))
    whole = spans(exporter, "POST /v1/samples")["POST /v1/samples"]
    assert line["trace_id"] == TRACE
    assert line["span_id"] == f"{whole.context.span_id:016x}"


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_SERVICE_NAME": "it"},
    ],
)
def test_tracing_is_off_unless_it_is_configured(environment: dict[str, str]) -> None:
    assert start_tracing(environment) is None


def test_missing_exporter_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    assert start_tracing({"OTEL_TRACES_EXPORTER": "pigeon"}) is None
    assert "no exporter 'pigeon'" in caplog.text


def test_failing_exporter_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: Any) -> None:
        raise ValueError("a port must be a number")

    monkeypatch.setattr(ConsoleSpanExporter, "__init__", fail)
    assert start_tracing({"OTEL_TRACES_EXPORTER": "console"}) is None
    assert "the exporter 'console' cannot start: a port must be a number" in caplog.text


def test_shutdown_does_not_wait_for_an_absent_collector(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answered, provider = threading.Event(), TracerProvider(shutdown_on_exit=False)
    monkeypatch.setattr(provider, "shutdown", answered.wait)
    monkeypatch.setattr("scanline.service.tracing.EXPORT_SECONDS", 0.01)
    Tracing(provider).shutdown()
    assert "the last traces were not exported" in caplog.text
    answered.set()


def test_the_end_of_the_application_exports_the_last_spans(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended, tracing = threading.Event(), Tracing(TracerProvider(shutdown_on_exit=False))
    monkeypatch.setattr(tracing, "shutdown", ended.set)
    app_state, model = AppState(settings(), tracing), Checkpoint("it", tiny_model())
    with talking_to(create_app(app_state, lambda: app_state.open([model]))):
        assert not ended.is_set()
    assert ended.is_set()


def test_exporter_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    exported: list[Any] = []
    monkeypatch.setattr(ConsoleSpanExporter, "export", lambda _, spans: exported.extend(spans))
    tracing = start_tracing({"OTEL_TRACES_EXPORTER": "console"})
    assert tracing is not None
    with tracing.span("encode"):  # no span, because there is no request
        assert tracing.log_fields() == {}
    with tracing.request_span(Headers(HEADERS), "GET", "/"):
        assert tracing.log_fields()["trace_id"] == TRACE
    tracing.shutdown()
    assert [span.name for span in exported] == ["GET"]
    for handler in logging.getLogger().handlers:
        for one in [one for one in handler.filters if isinstance(one, TraceIds)]:
            handler.removeFilter(one)
