"""Registry of the served models, and of replaced ones until their images are drawn and read."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from scanline.model.checkpoint import Checkpoint
from scanline.model.decoders.base import BackendError
from scanline.model.decoders.factory import create_decoder
from scanline.model.decoders.memory import InsufficientMemoryError, slot_memory_budget
from scanline.model.network import LinearTransformer
from scanline.model.pixel_bits import likelihood_network
from scanline.service.engine.engine import Engine
from scanline.service.engine.progress import Observer
from scanline.service.engine.protocol import EngineProtocol
from scanline.service.engine.provenance import Provenance
from scanline.service.engine.queue import Queue, QueuedGeneration
from scanline.service.metrics import Metrics, ModelMetrics
from scanline.service.settings import Settings

log = logging.getLogger("scanline.server")

MAX_SPARE_SLOTS = 64  # for small requests while large ones occupy all other slots
# A request keeps the model that it found. While its upload is read, the model may be replaced; the
# model's engine still accepts the request for this time.
SUBMIT_SECONDS = 30.0
MAX_DRAIN_SECONDS = 86_400.0  # for the images of a replaced model


@dataclass(frozen=True, eq=False)
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
    def provenance(self) -> Provenance:
        """Weights and arithmetic of the model, for the recipes of its images."""
        return Provenance.of(self.checkpoint, self.engine.arithmetic)


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
        # Spare slots come on top of the setting, so the error's own number would mislead.
        raise BackendError(
            f"{error.problem}: set SCANLINE_SLOTS to {fit}" if fit else error
        ) from None
    engine = Engine(checkpoint.name, decoder, settings.queue_limits, observer, spare=spare)
    engine.start()
    return engine


def _check_guidance(loaded: LoadedModel) -> None:
    """Raise ``BackendError`` if a model's default guidance needs more slots than there are."""
    guidance = loaded.checkpoint.defaults.guidance
    if guidance != 1 and loaded.engine.max_slots_per_image < 2:
        raise BackendError(
            f"{loaded.checkpoint.name} uses two slots per image (its default guidance is "
            f"{guidance:g}), but there is one: set SCANLINE_SLOTS to 2 or more"
        )


class ModelRegistry:
    """The served models by name, and replaced ones that still draw or keep images.

    ``served`` is replaced as a whole and never changed, so a request may iterate over it. A request
    uses the model object that it found first, until its reply ends: generations finish with the
    weights that they began with.

    Args:
        settings: The settings.
        metrics: The server's metrics, for the engines' observers.

    Attributes:
        served: The models by name, the default first.
    """

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self.served: Mapping[str, LoadedModel] = {}
        self._settings, self._metrics = settings, metrics
        self._budget: int | None = None  # bytes for slots, measured before any was used
        self._lock = threading.Lock()  # of ``served`` and the two collections below
        self._replaced: list[LoadedModel] = []  # whose engines still run
        # Results of engines that have ended, without the engines' memory.
        self._kept: list[Queue] = []
        self._closing = threading.Event()

    @property
    def engines(self) -> list[EngineProtocol]:
        """The running engines; several of one name while a replaced model still draws."""
        with self._lock:
            return [loaded.engine for loaded in (*self.served.values(), *self._replaced)]

    @property
    def retiring(self) -> bool:
        """True while a replaced model still draws, and holds its memory."""
        with self._lock:
            return bool(self._replaced)

    def find_generation(self, identifier: str) -> QueuedGeneration | None:
        """Find a live or kept generation by its id, including those of replaced models."""
        with self._lock:
            loaded = (*self.served.values(), *self._replaced)
            queues = [*(one.engine.queue for one in loaded), *self._kept]
        for queue in queues:
            if generation := queue.find(identifier):
                return QueuedGeneration(queue, generation)
        return None

    def open(
        self, checkpoints: Sequence[Checkpoint], opener: EngineFactory = open_engine
    ) -> dict[str, LoadedModel]:
        """Open an engine for each checkpoint without serving it yet. Compiling may take minutes.

        If one cannot be opened, all new ones are closed.

        Raises:
            BackendError, ValueError: If a model cannot run, or if the slots of all models,
                including the running ones, need more memory than is free.
            Exception: Any other error of ``opener``.
        """
        if self._budget is None:
            self._budget = slot_memory_budget()
        opened: dict[str, LoadedModel] = {}
        engines: list[EngineProtocol] = []
        try:
            for checkpoint in checkpoints:
                name = checkpoint.name
                engines.append(opener(checkpoint, self._settings, self._metrics.observer(name)))
                opened[name] = LoadedModel(engines[-1], checkpoint, int(time.time()))
                _check_guidance(opened[name])
                # Each engine by itself found enough memory, because slots use it only later.
                self._check_memory([*self.engines, *engines])
        except BaseException:
            close_all(engines, 0.0)
            raise
        return opened

    def _check_memory(self, engines: Sequence[EngineProtocol]) -> None:
        """Raise ``BackendError`` if the engines' slots need more memory than there is."""
        needed, budget = sum(engine.memory for engine in engines), self._budget or 0
        if needed > budget:
            slots = self._settings.slots + spare_slots(self._settings.slots)
            fit = _fitting_slots(slots * budget // needed)
            hint = f"set SCANLINE_SLOTS to {fit}, or " if fit else ""
            raise BackendError(
                f"the slots of {' and '.join(one.name for one in engines)} need "
                f"{needed / 1e9:.3g} GB together, but {budget / 1e9:.3g} GB are free for them: "
                f"{hint}serve fewer models"
            )

    def serve(self, models: Mapping[str, LoadedModel]) -> None:
        """Serve these models from now on, and retire the served ones that are not among them."""
        with self._lock:
            replaced = [one for one in self.served.values() if one not in models.values()]
            self.served = dict(models)
            self._replaced += replaced
        for loaded in replaced:
            name, queue = f"retiring-{loaded.checkpoint.name}", loaded.engine.queue
            threading.Thread(target=self._retire, args=(queue,), name=name, daemon=True).start()

    def _retire(self, queue: Queue) -> None:
        """Let a replaced model finish its images, free its slots, and keep its results a while.

        The thread holds the queue only. A reference to the model would keep its decoder's memory.
        """
        self._closing.wait(SUBMIT_SECONDS)
        self._end_engine(queue)
        self._closing.wait(self._settings.keep_seconds)
        with self._lock:
            self._kept.remove(queue)

    def _end_engine(self, queue: Queue) -> None:
        """Close the engine of a replaced model once its images are drawn, and forget the model."""
        with self._lock:
            loaded = next(one for one in self._replaced if one.engine.queue is queue)
        loaded.engine.close(0.0 if self._closing.is_set() else MAX_DRAIN_SECONDS)
        with self._lock:
            self._replaced = [one for one in self._replaced if one is not loaded]
            self._kept.append(queue)
        digest = loaded.checkpoint.digest
        log.info("%s: the weights %.10s are no longer used", loaded.checkpoint.name, digest)

    def close(self, seconds: float) -> None:
        """Accept no more work, and end what is not finished within ``seconds``."""
        engines = self.engines
        close_all(engines, seconds)
        self._closing.set()


def close_all(engines: Iterable[EngineProtocol], seconds: float) -> None:
    """Close engines at the same time (see ``EngineProtocol.close``)."""
    closing = [threading.Thread(target=engine.close, args=(seconds,)) for engine in engines]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join()
