"""The running server: its models, and its state from loading to drained."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scanline.kernels.native.cpu import usable_cores
from scanline.model.checkpoint import Checkpoint
from scanline.model.decoders.base import BackendError
from scanline.model.decoders.factory import create_decoder
from scanline.model.decoders.memory import InsufficientMemoryError, slot_memory_budget
from scanline.service import __version__
from scanline.service.engine.engine import Engine
from scanline.service.engine.idempotency import IdempotencyStore
from scanline.service.engine.in_flight import InFlightLimiter
from scanline.service.engine.progress import Observer
from scanline.service.engine.protocol import EngineProtocol
from scanline.service.http.sse import StreamPacer
from scanline.service.http.thread_pool import FairThreadPool
from scanline.service.metrics import Metrics, ModelMetrics
from scanline.service.settings import Settings

log = logging.getLogger("scanline.server")

SPARE_SLOTS = 64  # at most, for small requests while large ones have all the others
JSON_BYTES = 65_536  # of a body that is no form, beside the values of a picture in it
VALUE_BYTES = 6  # of a picture's value in JSON, with a comma and a blank or two
LARGE = 2**18  # pixels of an image that takes tens of milliseconds to encode


@dataclass(frozen=True)
class LoadedModel:
    """A model, the engine that draws with it, and when that was opened, in seconds since 1970."""

    engine: EngineProtocol
    checkpoint: Checkpoint
    created: int

    def __post_init__(self) -> None:
        """Read the weights now: they take tens of milliseconds, which no request should wait."""
        _ = self.checkpoint.digest

    @property
    def fingerprint(self) -> str:
        """What a drawing of it depends on beside the request: weights, program and machine.

        A cluster's replicas, and with them the kind of machine, may be others later.
        """
        return f"{__version__} {self.engine.variant} {self.checkpoint.digest}"


EngineFactory = Callable[[Checkpoint, Settings, ModelMetrics], EngineProtocol]


def spare_slots(slots: int) -> int:
    """Count the spare slots beside so many."""
    return min(slots, SPARE_SLOTS)


def _fitting(most: int) -> int:
    """Give how many slots are no more than ``most`` together with their spare ones."""
    return max(most - SPARE_SLOTS, most // 2)


def open_engine(
    checkpoint: Checkpoint, settings: Settings, observer: Observer | None = None
) -> Engine:
    """Open a checkpoint's decoder and start its engine; raises ``BackendError``."""
    spare = spare_slots(settings.slots)
    log.info("opening %s", checkpoint.name)  # of which what follows is said
    try:
        decoder = create_decoder(
            checkpoint.model, settings.slots + spare, settings.backend, settings.threads,
            checkpoint.native_precision,
        )  # fmt: skip
    except InsufficientMemoryError as error:
        fit = _fitting(error.max_slots)
        raise BackendError(f"{error}; set SCANLINE_SLOTS to {fit}" if fit else error) from None
    engine = Engine(checkpoint.name, decoder, settings.limits, observer, spare=spare)
    engine.start()
    return engine


def _check_guided(name: str, loaded: LoadedModel) -> None:
    """Raise ``BackendError`` where a model's own guidance needs more slots than there are."""
    guidance = loaded.checkpoint.defaults.guidance
    if guidance != 1 and loaded.engine.max_slots_per_image < 2:
        raise BackendError(
            f"{name} draws an image of a class in two slots (guidance {guidance:g}) and has one: "
            "set SCANLINE_SLOTS to 2 or more"
        )


class AppState:
    """All that the routes share: settings, models, metrics, and whether to take work.

    ``failure`` says why loading ended without models; the process then stops with it.
    ``ended_early`` says that the server ended before either, ``draining`` that it is told to end.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.models: dict[str, LoadedModel] = {}
        self.ready = self.ended_early = False
        self.failure: str | None = None
        self._turning = threading.Lock()  # what follows, ``ready`` and ``models``
        self.draining = False
        self.score_pool = FairThreadPool(
            1, 32, code="scores_full"
        )  # likelihoods, beside the engines
        # Uploads, each some 50 MB while it is decoded; half the cores at most, for others draw.
        self.upload_pool = FairThreadPool(
            max(1, min(4, usable_cores() // 2)), 128, code="uploads_full"
        )
        self.encode_pool = FairThreadPool(2)  # replies
        self.large_encode_pool = FairThreadPool(1)  # images of replies, pixels made larger
        self.idempotency = IdempotencyStore()
        self.in_flight = InFlightLimiter(settings.max_images_per_caller)
        self.metrics = Metrics(lambda: {name: m.engine for name, m in self.models.items()})
        self.metrics.watch_queues(
            score=lambda: self.score_pool.queued, upload=lambda: self.upload_pool.queued,
            reply=lambda: self.encode_pool.queued, enlarge=lambda: self.large_encode_pool.queued,
        )  # fmt: skip
        self.stream_pacer = StreamPacer(self.metrics.open_streams, usable_cores())

    @property
    def max_json(self) -> int:
        """Give how many bytes a body may have that is no form."""
        if self.settings.max_json is not None:
            return self.settings.max_json
        values = (loaded.engine.config.values for loaded in self.models.values())
        return JSON_BYTES + VALUE_BYTES * max(values, default=0)

    def encode_pool_for(self, pixels: int) -> FairThreadPool:
        """Give the threads that write an image of so many pixels."""
        return self.large_encode_pool if pixels > LARGE else self.encode_pool

    def open(self, checkpoints: Sequence[Checkpoint], opener: EngineFactory = open_engine) -> None:
        """Open the workshop of each checkpoint, by default an engine; slow where it compiles."""
        opened: dict[str, LoadedModel] = {}
        room = slot_memory_budget()
        try:
            for checkpoint in checkpoints:
                name = checkpoint.name
                opened[name] = LoadedModel(
                    opener(checkpoint, self.settings, self.metrics.observer(name)),
                    checkpoint,
                    int(time.time()),
                )
                _check_guided(name, opened[name])
                # Each alone found the room there, for none has used its slots yet.
                self._check_together(opened, room)
        except (BackendError, ValueError) as error:
            self.failure = str(error)
        except Exception as error:  # no bug may leave a server that loads for ever
            log.exception("opening the models failed")
            self.failure = f"the models cannot be opened: {error}"
        if self.failure is not None:
            for loaded in opened.values():
                loaded.engine.close(0.0)
            return
        with self._turning:
            if self.draining:  # told to end while it loaded
                for loaded in opened.values():
                    loaded.engine.close(0.0)
            self.models = opened  # all at once: nobody is told that one to come is not there
            self.ready = not self.draining
        if self.ready:
            log.info("ready: %s", ", ".join(self.models))

    def _check_together(self, opened: dict[str, LoadedModel], room: int) -> None:
        """Raise ``BackendError`` where their slots come to take more than ``room`` bytes."""
        taken = sum(loaded.engine.memory for loaded in opened.values())
        if taken > room:
            slots = self.settings.slots + spare_slots(self.settings.slots)
            fit = _fitting(slots * room // taken)
            how = f"set SCANLINE_SLOTS to {fit}, or " if fit else ""
            raise BackendError(
                f"the slots of {' and '.join(opened)} take {taken / 1e9:.3g} GB together, and "
                f"{room / 1e9:.3g} GB are there for them: {how}serve fewer models"
            )

    def fatal_error(self) -> str | None:
        """Say why its process is to end, if it is: no models, or one that can draw no more."""
        for name, loaded in self.models.items():
            if self.ready and loaded.engine.broken:
                self.failure = f"{name} can draw no more (see the log): start the server again"
        return self.failure

    @property
    def work_summary(self) -> str:
        """Count the images that run and wait, in words."""
        engines = [loaded.engine for loaded in self.models.values()]
        running = sum(engine.running for engine in engines)
        return f"{running} images run, {sum(one.queue.waiting for one in engines)} wait"

    def drain(self, seconds: float | None = None) -> None:
        """Take no more work, let what runs finish within the drain time, and end the rest."""
        with self._turning:
            self.draining, self.ready = True, False
            models = list(self.models.values())
        seconds = self.settings.drain_seconds if seconds is None else seconds
        closing = [threading.Thread(target=one.engine.close, args=(seconds,)) for one in models]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()
