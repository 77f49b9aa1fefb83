"""Fixtures of the engine's tests: a gate for single steps, and engines with leak checks."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from scanline.model.config import ModelConfig
from scanline.model.decoders.base import Decoder
from scanline.service.engine.engine import Engine
from scanline.service.engine.generation import Generation, GenerationSpec
from scanline.service.engine.image import FinishReason
from scanline.service.engine.queue_limits import QueueLimits
from tests.service.fake_decoders import FakeDecoder, LateDecoder, LatePrefillDecoder, fake_image
from tests.service.fixtures import until

EVERY_FAKE = pytest.mark.parametrize("decoders", [FakeDecoder, LateDecoder, LatePrefillDecoder])


class Gate:
    """Gate that blocks the engine thread before each step, until steps are let through."""

    def __init__(self, decoder: FakeDecoder) -> None:
        self._steps = threading.Semaphore(0)
        self._open = threading.Event()
        self._decoder, decoder.before_step = decoder, self._pass
        self.arrivals = 0

    def _pass(self, slots: list[int]) -> None:
        self.arrivals += 1
        while not self._open.is_set() and not self._steps.acquire(timeout=0.001):
            if self._decoder.before_step != self._pass:  # the test is over
                return

    def wait(self) -> None:
        """Wait until the engine is blocked in a step."""
        until(lambda: self.arrivals, "a step")

    def turn(self, steps: int = 1) -> None:
        """Let ``steps`` steps through, and wait until the engine is blocked in the next one."""
        self.wait()
        for _ in range(steps):
            before = self.arrivals
            self.let(1)
            until(lambda before=before: self.arrivals > before, "the next step")  # type: ignore[misc]

    def let(self, steps: int) -> None:
        """Let ``steps`` steps through, without waiting."""
        for _ in range(steps):
            self._steps.release()

    def open(self) -> None:
        """Let all steps through from now on."""
        self._open.set()


class RecordingObserver:
    """Observer that records all events."""

    def __init__(self) -> None:
        self.again = 0  # images drawn again after a lost replica
        self.waits: list[float] = []
        self.first_pixels: list[float] = []
        self.ends: list[float] = []
        self.steps: list[tuple[float, int]] = []
        self.reasons: Counter[FinishReason] = Counter()

    @property
    def pixels(self) -> int:
        return sum(pixels for _, pixels in self.steps)

    def admitted(self, waited: float) -> None:
        self.waits.append(waited)

    def redrawn(self, images: int) -> None:
        self.again += images

    def first_pixel(self, after: float) -> None:
        self.first_pixels.append(after)

    def ended(self, after: float) -> None:
        self.ends.append(after)

    def stepped(self, seconds: float, pixels: int) -> None:
        self.steps.append((seconds, pixels))

    def finished(self, reason: FinishReason) -> None:
        self.reasons[reason] += 1


@contextlib.contextmanager
def opened(
    decoder: Decoder,
    observer: RecordingObserver | None = None,
    clock: Callable[[], float] = time.perf_counter,
    spare: int = 0,
    **limits: float,
) -> Iterator[Engine]:
    """Create an engine that is not started, and check at the end that it leaks nothing."""
    bounds = QueueLimits(**limits)  # type: ignore[arg-type]
    engine = Engine("fake", decoder, bounds, observer, clock, spare)
    drain = 0.0  # if the test fails, do not wait
    try:
        yield engine
        drain = 30.0
    finally:
        if isinstance(decoder, FakeDecoder):
            decoder.before_step = lambda slots: None
        engine.close(drain)
    assert not engine.alive
    assert_empty(engine)


@contextlib.contextmanager
def running(
    decoder: Decoder,
    observer: RecordingObserver | None = None,
    clock: Callable[[], float] = time.perf_counter,
    spare: int = 0,
    **limits: float,
) -> Iterator[Engine]:
    """Run an engine, and check at the end that it leaks nothing."""
    with opened(decoder, observer, clock, spare, **limits) as engine:
        engine.start()
        yield engine


def assert_empty(engine: Engine) -> None:
    assert engine.queue.waiting == 0
    assert engine.slots_in_use == 0


def assert_all_slots_free(engine: Engine, decoder: FakeDecoder) -> None:
    """Check that an idle engine can draw in all its slots at once."""
    before = len(decoder.steps)
    generation = engine.queue.submit(GenerationSpec(n=decoder.max_slots, seed=0))
    with engine.queue.reading(generation):
        assert_right(generation)
    together, _ = decoder.steps[before]
    assert sorted(together) == list(range(decoder.max_slots))


def losing(decoder: FakeDecoder) -> Callable[[list[int]], None]:
    """Return a hook that fails like a lost device."""

    def fail(slots: list[int]) -> None:
        decoder.broken = True
        raise RuntimeError("an illegal memory access was encountered")

    return fail


def finished(generation: Generation) -> None:
    until(lambda: generation.finished, "the generation's end")


def drawn(generation: Generation) -> list[NDArray[np.uint8]]:
    finished(generation)
    return [image.read(0, generation.config.pixels) for image in generation.images]


def assert_right(generation: Generation) -> None:
    """Check every pixel of a generation that ``FakeDecoder`` drew."""
    for image, pixels in zip(generation.images, drawn(generation), strict=True):
        assert image.finish_reason is FinishReason.LENGTH
        assert image.position == generation.config.pixels
        assert image.bits is not None
        assert image.bits == generation.config.pixels
        expected = fake_image(generation.config, generation.spec, image.index)
        np.testing.assert_array_equal(pixels, expected)


def seeds_in(slots: list[int], engine: Engine) -> list[int]:
    """Return the seeds of the images in these lead slots."""
    return [engine._slots.by_lead[slot].image.seed for slot in slots]


def completion(
    config: ModelConfig, seed: int, known: NDArray[np.bool_], n: int = 1
) -> GenerationSpec:
    values = np.random.default_rng(seed).integers(0, 256, (config.pixels, config.channels))
    return GenerationSpec(n=n, seed=seed, canvas=values.astype(np.uint8), known=known)
