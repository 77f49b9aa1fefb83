"""Prometheus metrics."""

from __future__ import annotations

import platform
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from scanline.service import __version__
from scanline.service.engine.image import FinishReason
from scanline.service.engine.protocol import EngineProtocol

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_DECODER_METRICS = (
    "scanline_pixels", "scanline_step_seconds", "scanline_running_images", "scanline_slots",
    "scanline_slots_in_use",
)  # fmt: skip
_WAIT_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300,
)  # fmt: skip
_STEP_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1)


ServedModels = Callable[[], Iterable[tuple[EngineProtocol, str]]]
ReplicaMetrics = Callable[[], Mapping[str, Sequence[Metric]]]  # by the name of the replica


class Metrics:
    """Metrics of one server, in their own registry.

    Args:
        engines: Function that returns all engines, whose gauges are read at each scrape.
        served: Function that returns the engine of each served model, and the digest of its
            weights.
    """

    def __init__(
        self, engines: Callable[[], Iterable[EngineProtocol]], served: ServedModels = tuple
    ) -> None:
        # Each metric would have another line, with the time of its creation.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self.replicas: list[ReplicaMetrics] = []  # in a cluster, one for each model
        self._add_drawing_metrics()
        self._add_request_metrics()
        self._add_server_metrics()
        self._registry.register(_Gauges(engines, served))
        versions = {
            "version": __version__, "python": platform.python_version(), "torch": version("torch")
        }  # fmt: skip
        Info("scanline_build", "Versions.", registry=self._registry).info(versions)
        ProcessCollector(registry=self._registry)

    def _add_drawing_metrics(self) -> None:
        model_label, registry = ["model"], self._registry
        self.queue_seconds = Histogram(
            "scanline_queue_seconds",
            "From queueing a request to its first running image.",
            model_label,
            buckets=_WAIT_BUCKETS,
            registry=registry,
        )
        self.first_pixel_seconds = Histogram(
            "scanline_first_pixel_seconds",
            "From queueing a request to its first pixel.",
            model_label,
            buckets=_WAIT_BUCKETS,
            registry=registry,
        )
        self.step_seconds = Histogram(
            "scanline_step_seconds",
            "One call of the decoder, which draws a few pixels of each image.",
            model_label,
            buckets=_STEP_BUCKETS,
            registry=registry,
        )
        self.pixels = Counter("scanline_pixels", "Pixels drawn.", model_label, registry=registry)
        self.images = Counter(
            "scanline_images", "Images finished.", ["model", "finish_reason"], registry=registry
        )
        self.redrawn = Counter(
            "scanline_redrawn_images",
            "Images that another replica drew again because theirs failed.",
            model_label,
            registry=registry,
        )
        self.generation_seconds = Histogram(
            "scanline_generation_seconds",
            "From queueing a request to its last image.",
            model_label,
            buckets=_WAIT_BUCKETS,
            registry=registry,
        )

    def _add_request_metrics(self) -> None:
        registry = self._registry
        self.requests = Counter(
            "scanline_requests",
            "HTTP requests answered.",
            ["route", "method", "status"],
            registry=registry,
        )
        self.request_seconds = Histogram(
            "scanline_request_seconds",
            "From a request's headers to the end of its reply.",
            ["route", "method"],
            buckets=_WAIT_BUCKETS,
            registry=registry,
        )
        self.refused = Counter(
            "scanline_refused",
            "Requests refused, by the code of the error.",
            ["reason"],
            registry=registry,
        )
        # Created now, because an increase from nothing to 1 is no increase for Prometheus's rate().
        for code in (
            "internal_error",
            "generation_failed",
            "queue_full",
            "scores_full",
            "uploads_full",
            "no_space",
            "too_many_in_flight",
            "quota_exceeded",
            "closing",
            "invalid_api_key",
        ):
            self.refused.labels(code)
        self.quota_pixels = Counter(
            "scanline_quota_pixels",
            "Pixels counted towards the quota, by API key (empty without keys).",
            ["key"],
            registry=registry,
        )

    def _add_server_metrics(self) -> None:
        registry = self._registry
        self.model_changes = Counter(
            "scanline_model_changes",
            "Models added, replaced or removed without a restart, and files that failed to load.",
            ["change"],
            registry=registry,
        )
        for change in ("added", "replaced", "removed", "failed"):
            self.model_changes.labels(change)
        self.open_streams = Gauge(
            "scanline_open_streams", "Streams of events being sent.", registry=registry
        )
        self.connections = Gauge("scanline_connections", "Open connections.", registry=registry)
        self._work = Gauge(
            "scanline_waiting_work",
            "Tasks that wait for a thread: scores, uploads, replies, and replies with enlarged "
            "images.",
            ["kind"],
            registry=registry,
        )
        self.connections_closed = Counter(
            "scanline_connections_turned_away",
            "Connections closed by the server: full (refused), crowded (idle, closed for a new "
            "one), share (busy, of the client with the most, closed for a new one), late (request "
            "took too long), unread (reply not read), left (client disconnected).",
            ["reason"],
            registry=registry,
        )
        for reason in ("full", "crowded", "share", "late", "unread", "left"):
            self.connections_closed.labels(reason)

    def watch_queues(self, **waiting: Callable[[], int]) -> None:
        """Show at each scrape how many tasks of each kind wait."""
        for kind, count in waiting.items():
            self._work.labels(kind).set_function(count)

    def observer(self, model: str) -> ModelMetrics:
        """Return the observer of one model's engine."""
        return ModelMetrics(self, model)

    def decoder_metrics(self) -> list[Metric]:
        """Return the metrics that each replica of a cluster reports by itself."""
        return [metric for metric in self._registry.collect() if metric.name in _DECODER_METRICS]

    def render(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(_ReplicaMetricsCollector(self._registry, self.replicas))


class ModelMetrics:
    """Observer (``scanline.service.engine.progress.Observer``) of one engine."""

    def __init__(self, metrics: Metrics, model: str) -> None:
        self._metrics = metrics
        self._queue = metrics.queue_seconds.labels(model)
        self._first = metrics.first_pixel_seconds.labels(model)
        self._whole = metrics.generation_seconds.labels(model)
        self._step = metrics.step_seconds.labels(model)
        self._pixels = metrics.pixels.labels(model)
        self._redrawn = metrics.redrawn.labels(model)
        # Created now, so that a scrape shows zeros instead of nothing.
        self._images = {reason: metrics.images.labels(model, reason) for reason in FinishReason}

    def add_replicas(self, replicas: ReplicaMetrics) -> None:
        """Show these replicas' metrics in place of the server's own."""
        self._metrics.replicas.append(replicas)

    def admitted(self, waited: float) -> None:
        """Count a generation's time in the queue."""
        self._queue.observe(waited)

    def first_pixel(self, after: float) -> None:
        """Count a generation's time to its first pixel."""
        self._first.observe(after)

    def stepped(self, seconds: float, pixels: int) -> None:
        """Count one call of the decoder."""
        self._step.observe(seconds)
        self._pixels.inc(pixels)

    def ended(self, after: float) -> None:
        """Count a generation's time from request to end."""
        self._whole.observe(after)

    def finished(self, reason: FinishReason) -> None:
        """Count an image's end."""
        self._images[reason].inc()

    def redrawn(self, images: int) -> None:
        """Count images that a replica left undone."""
        self._redrawn.inc(images)


class _ReplicaMetricsCollector(Collector):
    """Collector that shows the replicas' decoder metrics instead of the server's."""

    def __init__(self, registry: Collector, replicas: Sequence[ReplicaMetrics]) -> None:
        self._registry, self._replicas = registry, replicas

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            if self._replicas and metric.name in _DECODER_METRICS:
                metric.samples = [
                    sample._replace(labels={**sample.labels, "replica": replica})
                    for of_model in self._replicas
                    for replica, replica_metrics in of_model().items()
                    for replica_metric in replica_metrics
                    if replica_metric.name == metric.name
                    for sample in replica_metric.samples
                ]
            yield metric


class _Gauges(Collector):
    """Gauges of engines and served models, read at each scrape."""

    def __init__(
        self, engines: Callable[[], Iterable[EngineProtocol]], served: ServedModels
    ) -> None:
        self._engines, self._served = engines, served

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield running and waiting images and slots of each model, and what it draws with."""
        help_texts = {
            "scanline_running_images": "Images being drawn.",
            "scanline_waiting_images": "Images waiting.",
            "scanline_slots": "Slots, including those kept for small requests.",
            "scanline_slots_in_use": "Slots with an image.",
        }
        values = {name: Counts[str]() for name in help_texts}
        for engine in self._engines():  # several of one name while a replaced model still draws
            values["scanline_running_images"][engine.name] += engine.running
            values["scanline_waiting_images"][engine.name] += engine.queue.waiting
            values["scanline_slots"][engine.name] += engine.total_slots
            values["scanline_slots_in_use"][engine.name] += engine.slots_in_use
        for name, text in help_texts.items():
            family = GaugeMetricFamily(name, text, labels=["model"])
            for model, value in values[name].items():
                family.add_metric([model], value)
            yield family
        info = GaugeMetricFamily(
            "scanline_model_info",
            "Backend of each served model, and the first 10 digits of its weights' SHA-256.",
            labels=["model", "backend", "weights"],
        )
        slow = GaugeMetricFamily(
            "scanline_model_slow",
            "1 if the model is drawn many times slower than on a usual machine.",
            labels=["model"],
        )
        for engine, weights in self._served():
            info.add_metric([engine.name, engine.backend, weights[:10]], 1)
            slow.add_metric([engine.name], engine.slow)
        yield from (info, slow)
