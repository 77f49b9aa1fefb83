"""Failures that end the engine, and an engine that hangs."""

from __future__ import annotations

import pytest

from scanline.model.sampling import SamplingParams
from scanline.service.engine import engine as engine_module
from scanline.service.engine import protocol
from scanline.service.engine.engine import MAX_FAILURES, Engine
from scanline.service.engine.generation import GenerationSpec
from scanline.service.engine.image import FinishReason
from scanline.service.engine.progress import ProgressTracker
from scanline.service.engine.queue_limits import ClosedError, QueueLimits
from tests.service.engine.fixtures import (
    EVERY_FAKE,
    Gate,
    assert_all_slots_free,
    assert_right,
    finished,
    losing,
    running,
)
from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import GREY, until


@EVERY_FAKE
def test_a_lost_device_ends_the_engine(decoders: type[FakeDecoder]) -> None:
    """Every step would fail from then on, so the process must be restarted."""
    decoder = decoders(GREY, 2)
    gate = Gate(decoder)
    engine = Engine("grey", decoder, QueueLimits())
    engine.start()
    touched = engine.queue.submit(GenerationSpec(n=4, seed=0))
    gate.wait()

    with engine.queue.reading(touched):
        decoder.before_step = losing(decoder)
        gate.open()
        finished(touched)
    until(lambda: not engine.alive)
    assert engine.broken
    assert {i.finish_reason for i in touched.images} == {FinishReason.ERROR}
    with pytest.raises(ClosedError):
        engine.queue.submit(GenerationSpec(n=1, seed=0))
    engine.close(0)


def test_a_device_lost_during_a_load_ends_the_engine() -> None:
    decoder = FakeDecoder(GREY, 2)
    engine = Engine("grey", decoder, QueueLimits())

    decoder.before_load = losing(decoder)
    engine.start()
    touched = engine.queue.submit(GenerationSpec(n=4, seed=0))
    with engine.queue.reading(touched):
        finished(touched)
    until(lambda: not engine.alive)
    assert engine.broken
    engine.close(0)


@pytest.mark.parametrize("what", ["before_step", "before_load"])
def test_a_decoder_that_always_fails_ends_the_engine(what: str) -> None:
    """Only consecutive failures count."""
    decoder = FakeDecoder(GREY, 2)
    engine = Engine("grey", decoder, QueueLimits())

    def fail(slots: list[int]) -> None:
        raise MemoryError

    engine.start()
    for fails in [True] * (MAX_FAILURES - 1) + [False] + [True] * MAX_FAILURES:
        assert not engine.broken
        setattr(decoder, what, fail if fails else lambda slots: None)
        touched = engine.queue.submit(GenerationSpec(n=1, seed=0))
        with engine.queue.reading(touched):
            finished(touched)
        assert (touched.error is not None) is fails
    until(lambda: engine.broken and not engine.alive)
    engine.close(0)


def test_a_request_that_always_fails_does_not_end_the_engine() -> None:
    """The engine draws a plain image before it gives up, because a request may be at fault."""
    decoder = FakeDecoder(GREY, 2)
    plain: list[int] = []

    def fail(slots: list[int]) -> None:
        if decoder.inputs.temperature[slots[0]] == 0.5:
            raise RuntimeError("this temperature is too much for it")
        plain.extend(slots)

    decoder.before_step = fail
    with running(decoder) as engine:
        for seed in range(2 * MAX_FAILURES + 1):
            touched = engine.queue.submit(
                GenerationSpec(n=1, seed=seed, sampling=SamplingParams(temperature=0.5))
            )
            with engine.queue.reading(touched):
                finished(touched)
            assert touched.error is not None
        assert len(plain) == 2  # one plain image per MAX_FAILURES failures
        decoder.steps.clear()
        after = engine.queue.submit(GenerationSpec(n=1, seed=0))
        with engine.queue.reading(after):
            assert_right(after)
        assert_all_slots_free(engine, decoder)


def test_a_bug_in_the_engine_ends_all_generations_with_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoder = FakeDecoder(GREY, 2)
    gate = Gate(decoder)
    engine = Engine("grey", decoder, QueueLimits())
    engine.start()
    generations = [engine.queue.submit(GenerationSpec(n=3, seed=seed)) for seed in range(3)]
    gate.wait()

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(ProgressTracker, "finish_image", fail)
    engine.queue.cancel(generations[0])
    gate.open()
    for generation in generations:
        with engine.queue.reading(generation):
            finished(generation)
    until(lambda: engine.broken and not engine.alive)
    monkeypatch.setattr(engine_module, "STUCK_SECONDS", 0.0)
    assert not engine.stuck  # it has ended, so it is broken
    with pytest.raises(ClosedError):
        engine.queue.submit(GenerationSpec(n=1, seed=0))
    engine.close(0)


def test_an_idle_engine_is_not_stuck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_module, "STUCK_SECONDS", 0.0)
    with running(FakeDecoder(GREY, 2)) as engine:
        generation = engine.queue.submit(GenerationSpec(n=3, seed=0))
        with engine.queue.reading(generation):
            assert_right(generation)
        until(lambda: engine.alive, "an idle engine")
        assert not engine.stuck


def test_a_hanging_step_is_reported_and_close_returns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoder = FakeDecoder(GREY, 2)
    gate = Gate(decoder)
    monkeypatch.setattr(engine_module, "STUCK_SECONDS", 0.0)
    monkeypatch.setattr(protocol, "JOIN_GRACE_SECONDS", 0.0)
    engine = Engine("grey", decoder, QueueLimits())
    engine.start()
    assert engine.alive  # an idle engine is not stuck
    generation = engine.queue.submit(GenerationSpec(n=1, seed=0))
    gate.wait()
    until(lambda: engine.stuck)
    assert not engine.alive
    engine.close(0)  # returns
    gate.open()
    finished(generation)
    until(lambda: not engine._thread.is_alive())
