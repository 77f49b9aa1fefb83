"""Traces of requests with OpenTelemetry, if it is installed and the environment configures it.

This is the only module that imports OpenTelemetry. Without it, no middleware and no span exists.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Collection, MutableMapping
from functools import partial
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scanline.service import __version__
from scanline.service.engine.generation import Generation
from scanline.service.http.paths import route_path

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

log = logging.getLogger("scanline.server")

EXPORT_SECONDS = 2.0  # for the last spans at the end; OpenTelemetry itself would try for 30 s
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


class Tracing:
    """Spans of requests: of the request itself, and of its parts.

    Args:
        provider: Provider of OpenTelemetry's SDK, which exports the spans.
    """

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry import context, propagate, trace

        self._context, self._propagate, self._trace = context, propagate, trace
        self._provider = provider
        self._tracer = provider.get_tracer("scanline", __version__)

    def span(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """Return a span of the present request, which lasts as long as the ``with`` block.

        Work without a traced request, such as ``/metrics``, gets none.
        """
        if not self._trace.get_current_span().get_span_context().is_valid:
            return contextlib.nullcontext()
        span: contextlib.AbstractContextManager[Any] = self._tracer.start_as_current_span(name)
        return span

    def request_span(
        self, headers: Headers, method: str, path: str
    ) -> contextlib.AbstractContextManager[Any]:
        """Return the span of a request, a child of the span that its headers name."""
        span: contextlib.AbstractContextManager[Any] = self._tracer.start_as_current_span(
            method,
            context=self._propagate.extract(headers),
            kind=self._trace.SpanKind.SERVER,
            attributes={"http.request.method": method, "url.path": path},
        )
        return span

    def set_error(self, span: Any, message: str) -> None:
        """Mark a span as failed."""
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, message))

    def trace_generation(self, generation: Generation) -> None:
        """Add spans for the queue, the prefill and the drawing once a generation has finished."""
        context = self._context.get_current()
        generation.add_done_callback(partial(self._add_spans, generation, context))

    def _add_spans(self, generation: Generation, context: Any) -> None:
        if (ended := generation.ended) is None:
            return
        offset = time.time_ns() - round(generation.clock() * 1e9)
        attributes = {
            "scanline.generation": generation.id,
            "scanline.model": generation.model,
            "scanline.images": generation.spec.n,
        }

        def add(name: str, began: float, end: float, **more: int) -> None:
            span = self._tracer.start_span(
                name, context, start_time=round(began * 1e9) + offset,
                attributes=attributes | {f"scanline.{key}": value for key, value in more.items()},
            )  # fmt: skip
            if generation.error is not None:
                self.set_error(span, generation.error)
            span.end(round(end * 1e9) + offset)

        started = ended if generation.started is None else generation.started
        add("queue", generation.created, started)
        if generation.started is None:
            return
        drawing = started
        if generation.spec.prefix and generation.prefilled is not None:
            drawing = generation.prefilled
            add("prefill", started, drawing, pixels=generation.spec.prefix)
        add("draw", drawing, ended, pixels=generation.drawn_pixels)

    def log_fields(self) -> dict[str, str]:
        """Return the ids of the present trace and span for the log; empty without a request."""
        context = self._trace.get_current_span().get_span_context()
        if not context.is_valid:
            return {}
        return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}

    def shutdown(self) -> None:
        """Export the last spans, but wait for at most ``EXPORT_SECONDS``."""
        thread = threading.Thread(target=self._provider.shutdown, name="last-spans", daemon=True)
        thread.start()
        thread.join(EXPORT_SECONDS)
        if thread.is_alive():
            log.warning("the last traces were not exported within %g s", EXPORT_SECONDS)


class TracingMiddleware:
    """Gives each request a span, continuing the trace of the header ``traceparent``.

    Args:
        app: The application.
        tracing: The traces.
        quiet_paths: Paths without spans.
    """

    def __init__(self, app: ASGIApp, tracing: Tracing, quiet_paths: Collection[str] = ()) -> None:
        self.app, self._tracing, self._quiet_paths = app, tracing, quiet_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or route_path(scope) in self._quiet_paths:
            await self.app(scope, receive, send)
            return
        status = 499  # the client left before the reply began

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        method, headers = scope["method"], Headers(scope=scope)
        with self._tracing.request_span(headers, method, scope["path"]) as span:
            try:
                await self.app(scope, receive, send_and_note)
            finally:
                route = getattr(scope.get("route"), "path", None)
                if route is not None:
                    span.update_name(f"{method} {route}")
                    span.set_attribute("http.route", route)
                span.set_attribute("http.response.status_code", status)
                span.set_attribute("scanline.request_id", scope["state"]["request_id"])
                if status >= 500:
                    self._tracing.set_error(span, f"HTTP {status}")


class TraceIds(logging.Filter):
    """Adds the ids of the present trace and span to log records."""

    def __init__(self, tracing: Tracing) -> None:
        super().__init__()
        self._tracing = tracing

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the ids; keep every record."""
        vars(record).update(self._tracing.log_fields())
        return True


def start_tracing(environment: MutableMapping[str, str] = os.environ) -> Tracing | None:
    """Return the traces that OpenTelemetry's standard variables configure; None if there are none.

    The ids of traces are added to the log.
    """
    names = environment.get("OTEL_TRACES_EXPORTER", "")
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true" or names == "none":
        return None
    if not names and not any(environment.get(name) for name in _ENDPOINTS):
        return None
    try:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError:
        log.warning("no traces: OpenTelemetry is not installed: pip install 'scanline-rnn[otel]'")
        return None
    if "service.name" not in environment.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        environment.setdefault("OTEL_SERVICE_NAME", "scanline")
    # At the exit, the SDK would wait without a limit of ours.
    provider = TracerProvider(shutdown_on_exit=False)
    for name in (names or "otlp").split(","):
        kind = name.strip()
        if kind == "otlp":
            protocol = next((environment[one] for one in _PROTOCOLS if one in environment), "http")
            kind = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
        found = list(entry_points(group="opentelemetry_traces_exporter", name=kind))
        if not found:
            log.warning(
                "no traces: there is no exporter %r: pip install 'scanline-rnn[otel]'", kind
            )
            return None
        try:
            provider.add_span_processor(BatchSpanProcessor(found[0].load()()))
        except Exception as error:  # any of the exporter, such as a wrong value of a variable
            log.warning("no traces: the exporter %r cannot start: %s", kind, error)
            return None
    tracing = Tracing(provider)
    for handler in logging.getLogger().handlers:
        handler.addFilter(TraceIds(tracing))
    return tracing
