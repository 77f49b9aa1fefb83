"""State of the server: its models, pools and metrics, from loading to drained."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from scanline.kernels.native.cpu import usable_cores
from scanline.model.checkpoint import Checkpoint
from scanline.model.decoders.base import BackendError
from scanline.model.decoders.factory import create_decoder
from scanline.model.decoders.memory import InsufficientMemoryError, slot_memory_budget
from scanline.model.network import LinearTransformer
from scanline.model.pixel_bits import likelihood_network
from scanline.service import __version__
from scanline.service.engine.engine import Engine
from scanline.service.engine.idempotency import IdempotencyStore
from scanline.service.engine.in_flight import InFlightLimiter
from scanline.service.engine.progress import Observer
from scanline.service.engine.protocol import EngineProtocol
from scanline.service.engine.quota import PixelQuota
from scanline.service.http.sse import StreamPacer
from scanline.service.http.thread_pool import FairThreadPool
from scanline.service.metrics import Metrics, ModelMetrics
from scanline.service.settings import Settings

log = logging.getLogger("scanline.server")

MAX_SPARE_SLOTS = 64  # for small requests while large ones occupy all other slots
JSON_BYTES = 65_536  # of a JSON body, without the values of an image in it
VALUE_BYTES = 6  # of one value of an image in JSON, with a comma and one or two blanks
LARGE_IMAGE = 2**18  # pixels; a larger image takes tens of milliseconds to encode


@dataclass(frozen=True)
class LoadedModel:
    """A model, its engine, and when it was opened, in seconds since 1970."""

    engine: EngineProtocol
    checkpoint: Checkpoint
    created: int

    def __post_init__(self) -> None:
        """Prepare now what would delay the first request that needs it."""
        _ = self.checkpoint.digest, self.network

    @cached_property
    def network(self) -> LinearTransformer:
        """Network for likelihoods, on the engine's device."""
        return likelihood_network(self.checkpoint.model, self.engine.likelihood_device)

    @property
    def fingerprint(self) -> str:
        """Program, machine and weights, on which an image depends in addition to the request.

        A cluster's replicas, and so the kind of machine, may change later.
        """
        return f"{__version__} {self.engine.variant} {self.checkpoint.digest}"


EngineFactory = Callable[[Checkpoint, Settings, ModelMetrics], EngineProtocol]


def spare_slots(slots: int) -> int:
    """Return the number of spare slots that are added to ``slots``."""
    return min(slots, MAX_SPARE_SLOTS)


def _fitting_slots(total: int) -> int:
    """Return the most slots that, with their spare slots, are no more than ``total``."""
    return max(total - MAX_SPARE_SLOTS, total // 2)


def open_engine(
    checkpoint: Checkpoint, settings: Settings, observer: Observer | None = None
) -> Engine:
    """Open a checkpoint's decoder and start its engine.

    Raises:
        BackendError: If the backend cannot run the model, or lacks memory for the slots.
    """
    spare = spare_slots(settings.slots)
    log.info("opening %s", checkpoint.name)  # the log lines that follow are about this model
    try:
        decoder = create_decoder(
            checkpoint.model, settings.slots + spare, settings.backend, settings.threads,
            checkpoint.native_precision,
        )  # fmt: skip
    except InsufficientMemoryError as error:
        fit = _fitting_slots(error.max_slots)
        raise BackendError(f"{error}; set SCANLINE_SLOTS to {fit}" if fit else error) from None
    engine = Engine(checkpoint.name, decoder, settings.queue_limits, observer, spare=spare)
    engine.start()
    return engine


def _check_guidance(name: str, loaded: LoadedModel) -> None:
    """Raise ``BackendError`` if a model's default guidance needs more slots than there are."""
    guidance = loaded.checkpoint.defaults.guidance
    if guidance != 1 and loaded.engine.max_slots_per_image < 2:
        raise BackendError(
            f"{name} uses two slots per image (its default guidance is {guidance:g}), but there "
            "is one: set SCANLINE_SLOTS to 2 or more"
        )


class AppState:
    """State that all routes share.

    Attributes:
        settings: The settings.
        models: The models by name, the default first.
        ready: Whether requests are accepted.
        draining: Whether the server is shutting down.
        failure: Why the server cannot work; its process then ends with this error.
        ended_early: Whether the server ended while the models were loading.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.models: dict[str, LoadedModel] = {}
        self.ready = self.ended_early = False
        self.failure: str | None = None
        self._lock = threading.Lock()  # of ``draining``, ``ready`` and ``models``
        self.draining = False
        # Likelihoods, which are computed without the engines.
        self.score_pool = FairThreadPool(1, 32, code="scores_full")
        # Decoding an upload takes some 50 MB. Half of the cores are left for drawing.
        readers = max(1, min(4, usable_cores() // 2))
        self.upload_pool = FairThreadPool(readers, 128, code="uploads_full")
        self.encode_pool = FairThreadPool(2)
        self.large_encode_pool = FairThreadPool(1)  # for replies with enlarged images
        self.idempotency = IdempotencyStore()
        self.in_flight = InFlightLimiter(settings.max_images_per_caller)
        self.metrics = Metrics(lambda: {name: m.engine for name, m in self.models.items()})
        self.metrics.watch_queues(
            score=lambda: self.score_pool.queued, upload=lambda: self.upload_pool.queued,
            reply=lambda: self.encode_pool.queued, enlarge=lambda: self.large_encode_pool.queued,
        )  # fmt: skip
        self.quota = PixelQuota(settings.pixels_per_minute, self._count_quota_pixels)
        self.stream_pacer = StreamPacer(self.metrics.open_streams, usable_cores())

    def _count_quota_pixels(self, caller: str, pixels: int) -> None:
        # Every address would add a time series, so that clients without keys are counted as one.
        key = caller if self.settings.api_keys else ""
        self.metrics.quota_pixels.labels(key).inc(pixels)

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
        """Open an engine for each checkpoint, which may compile for minutes.

        If one cannot be opened, all are closed and ``failure`` says why.

        Args:
            checkpoints: The models, the default first.
            opener: Function that opens the engine of one of them.
        """
        opened: dict[str, LoadedModel] = {}
        budget = slot_memory_budget()
        try:
            for checkpoint in checkpoints:
                name = checkpoint.name
                opened[name] = LoadedModel(
                    opener(checkpoint, self.settings, self.metrics.observer(name)),
                    checkpoint,
                    int(time.time()),
                )
                _check_guidance(name, opened[name])
                # Each engine by itself found enough memory, because slots use it only later.
                self._check_memory(opened, budget)
        except (BackendError, ValueError) as error:
            self.failure = str(error)
        except Exception as error:  # otherwise the server would stay in loading for ever
            log.exception("opening the models failed")
            self.failure = f"the models cannot be opened: {error}"
        if self.failure is not None:
            for loaded in opened.values():
                loaded.engine.close(0.0)
            return
        with self._lock:
            if self.draining:  # the shutdown began while the models were loading
                for loaded in opened.values():
                    loaded.engine.close(0.0)
            # All at once, so that no client is told that a model does not exist.
            self.models = opened
            self.ready = not self.draining
        if self.ready:
            log.info("ready: %s", ", ".join(self.models))

    def _check_memory(self, opened: dict[str, LoadedModel], budget: int) -> None:
        """Raise ``BackendError`` if the slots of all models need more than ``budget`` bytes."""
        needed = sum(loaded.engine.memory for loaded in opened.values())
        if needed > budget:
            slots = self.settings.slots + spare_slots(self.settings.slots)
            fit = _fitting_slots(slots * budget // needed)
            hint = f"set SCANLINE_SLOTS to {fit}, or " if fit else ""
            raise BackendError(
                f"the slots of {' and '.join(opened)} need {needed / 1e9:.3g} GB together, but "
                f"{budget / 1e9:.3g} GB are free for them: {hint}serve fewer models"
            )

    def fatal_error(self) -> str | None:
        """Return why the process must end: no models, or an engine that cannot draw any more."""
        for name, loaded in self.models.items():
            if self.ready and loaded.engine.broken:
                self.failure = f"{name} cannot draw any more (see the log): start the server again"
        return self.failure

    @property
    def work_summary(self) -> str:
        """Number of running and waiting images, for the log."""
        engines = [loaded.engine for loaded in self.models.values()]
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
            models = list(self.models.values())
        seconds = self.settings.drain_seconds if seconds is None else seconds
        closing = [threading.Thread(target=one.engine.close, args=(seconds,)) for one in models]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()
