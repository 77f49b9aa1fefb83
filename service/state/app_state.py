"""State of the server: its models, pools and metrics, from loading to drained."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from scanline.kernels.native.cpu import usable_cores
from scanline.model.checkpoint import Checkpoint
from scanline.model.decoders.base import BackendError
from scanline.service.engine.generation import Clock
from scanline.service.engine.idempotency import IdempotencyStore
from scanline.service.engine.pixel_quota import PixelQuota
from scanline.service.engine.queue_limits import RefusedError
from scanline.service.http.sse import StreamPacer
from scanline.service.http.thread_pool import FairThreadPool
from scanline.service.metrics import Metrics
from scanline.service.settings import Settings
from scanline.service.state.registry import (
    EngineFactory,
    LoadedModel,
    ModelRegistry,
    close_all,
    open_engine,
)
from scanline.service.state.reload import ModelReloader
from scanline.service.tracing import Tracing

log = logging.getLogger("scanline.server")

JSON_BYTES = 65_536  # limit of a JSON body, not counting image values
VALUE_BYTES = 6  # bytes per image value in JSON, with a comma and one or two blanks
LARGE_IMAGE = 2**18  # pixels; a larger image takes tens of milliseconds to encode


class AppState:
    """State that all routes share.

    Attributes:
        settings: The settings.
        tracing: The traces; None if they are off.
        registry: The models.
        reloader: Reloads the models; None if only a restart can.
        ready: Whether requests are accepted.
        draining: Whether the server is shutting down.
        failure: Why the server cannot work; its process then ends with this error.
        ended_early: Whether the server ended while the models were loading.
        quota: The pixels that each API key or client address has used.

    Args:
        settings: The settings.
        tracing: The traces; None if they are off.
        clock: Time in seconds for the quotas.
    """

    def __init__(
        self,
        settings: Settings,
        tracing: Tracing | None = None,
        *,
        clock: Clock = time.monotonic,
    ) -> None:
        self.settings, self.tracing = settings, tracing

        def pool(*arguments: Any, span: str, **options: Any) -> FairThreadPool:
            if tracing is not None:
                options["span"] = lambda: tracing.span(span)
            return FairThreadPool(*arguments, **options)

        self.ready = self.ended_early = False
        self.failure: str | None = None
        self._lock = threading.Lock()  # of ``draining`` and ``ready``
        self.draining = False
        # Likelihoods, which are computed without the engines.
        self.score_pool = pool(1, 32, code="scores_full", span="score")
        # Decoding an upload takes some 50 MB. Half of the cores are left for drawing.
        readers = max(1, min(4, usable_cores() // 2))
        self.upload_pool = pool(readers, 128, code="uploads_full", span="read upload")
        self.encode_pool = pool(2, span="encode")
        self.large_encode_pool = pool(1, span="encode")  # for replies with enlarged images
        self.metrics = Metrics(
            lambda: self.registry.engines,
            lambda: [(one.engine, one.checkpoint.digest) for one in self.models.values()],
        )
        self.registry = ModelRegistry(settings, self.metrics)
        self.idempotency = IdempotencyStore(self.registry.find_generation)
        self.reloader: ModelReloader | None = None
        self.reload_pool = FairThreadPool(1, 8, code="reloads_full")
        self.metrics.watch_queues(
            score=lambda: self.score_pool.queued, upload=lambda: self.upload_pool.queued,
            reply=lambda: self.encode_pool.queued, enlarge=lambda: self.large_encode_pool.queued,
        )  # fmt: skip
        self.quota = PixelQuota(settings.pixels_per_minute, self._count_quota_pixels, clock)
        self.stream_pacer = StreamPacer(usable_cores())

    def _count_quota_pixels(self, caller: str, pixels: int) -> None:
        # Every address would add a time series, so that clients without keys are counted as one.
        key = caller if self.settings.api_keys else ""
        self.metrics.quota_pixels.labels(key).inc(pixels)

    def check_caller(self, caller: str, n: int) -> None:
        """Raise ``RefusedError`` if a limit per caller does not allow ``n`` more images."""
        limit = self.settings.max_images_per_caller
        if limit is not None:
            in_flight = sum(one.queue.unfinished(caller) for one in self.registry.engines)
            if in_flight + n > limit:
                raise RefusedError(
                    f"you have {in_flight} images in flight, and the limit is {limit}; wait until "
                    "some have finished, or cancel them",
                    code="too_many_in_flight",
                )
        self.quota.check(caller)

    @property
    def models(self) -> Mapping[str, LoadedModel]:
        """The served models by name, the default first. Never changed, only replaced."""
        return self.registry.served

    @property
    def max_json(self) -> int:
        """Maximum size in bytes of a body that is not a form."""
        if self.settings.max_json is not None:
            return self.settings.max_json
        values = (loaded.engine.config.values for loaded in self.models.values())
        return JSON_BYTES + VALUE_BYTES * max(values, default=0)

    def encode_pool_for(self, pixels: int) -> FairThreadPool:
        """Return the pool that encodes images of this many pixels."""
        return self.large_encode_pool if pixels > LARGE_IMAGE else self.encode_pool

    def open(self, checkpoints: Sequence[Checkpoint], opener: EngineFactory = open_engine) -> None:
        """Open an engine for each checkpoint, then serve all models. Compiling may take minutes.

        If one cannot be opened, all are closed and ``failure`` says why.

        Args:
            checkpoints: The models, the default first.
            opener: Function that opens the engine of one of them.
        """
        try:
            opened = self.registry.open(checkpoints, opener)
        except (BackendError, ValueError) as error:
            self.failure = str(error)
            return
        except Exception as error:  # otherwise the server would stay in loading for ever
            log.exception("opening the models failed")
            self.failure = f"the models cannot be opened: {error}"
            return
        # All at once, so that no client is told that a model does not exist.
        self.serve(opened)
        if self.ready:
            log.info("ready: %s", ", ".join(self.models))

    def serve(self, models: Mapping[str, LoadedModel]) -> None:
        """Serve these models instead of the present ones, the default first.

        Replaced models finish their images. If the server is shutting down, new models are closed.
        """
        served = self.models.values()
        new = [loaded.engine for loaded in models.values() if loaded not in served]
        with self._lock:
            self.registry.serve(models)
            self.ready = not self.draining
        if not self.ready:
            close_all(new, 0.0)

    def fatal_error(self) -> str | None:
        """Return why the process must end: no models, or an engine that cannot draw any more."""
        for name, loaded in self.models.items():
            if self.ready and loaded.engine.broken:
                self.failure = f"{name} cannot draw any more (see the log): start the server again"
        return self.failure

    @property
    def work_summary(self) -> str:
        """Number of running and waiting images, for the log."""
        engines = self.registry.engines
        running = sum(engine.running for engine in engines)
        waiting = sum(engine.queue.waiting for engine in engines)
        return f"{running} images running, {waiting} waiting"

    def drain(self, seconds: float | None = None) -> None:
        """Refuse new work, let running images finish, and end the rest.

        Args:
            seconds: Time for the running images, by default the setting ``drain_seconds``.
        """
        with self._lock:
            self.draining, self.ready = True, False
        self.registry.close(self.settings.drain_seconds if seconds is None else seconds)
