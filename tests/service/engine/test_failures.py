"""Failures of the decoder and of the engine: only affected generations end, and no slot is lost."""

from __future__ import annotations

import dataclasses
import random
import threading
import time
from typing import Any

import numpy as np
import pytest

from scanline.model.config import ModelConfig
from scanline.model.decoders.base import InputBatch, Slots
from scanline.model.particles import ParticleFilter
from scanline.model.sampling import SamplingParams
from scanline.service.engine import engine as engine_module
from scanline.service.engine import protocol
from scanline.service.engine.engine import MAX_FAILURES, Engine
from scanline.service.engine.generation import (
    FinishReason,
    Generation,
    GenerationSpec,
    Image,
    Status,
)
from scanline.service.engine.progress import ProgressTracker
from scanline.service.engine.queue_limits import ClosedError, QueueFullError, QueueLimits
from tests.service.engine.fixtures import (
    EVERY_FAKE,
    Gate,
    RecordingObserver,
    assert_all_slots_free,
    assert_right,
    completion,
    finished,
    losing,
    opened,
    running,
)
from tests.service.fixtures import GREY, FakeDecoder, until


@EVERY_FAKE
def test_a_failing_step_ends_only_the_running_generations(
    decoders: type[FakeDecoder], caplog: pytest.LogCaptureFixture
) -> None:
    observer = RecordingObserver()
    decoder = decoders(GREY, 2)
    gate = Gate(decoder)
    with running(decoder, observer) as engine:
        touched = engine.queue.submit(GenerationSpec(n=3, seed=0))
        gate.wait()
        spared = engine.queue.submit(GenerationSpec(n=2, seed=10))

        def fail(slots: list[int]) -> None:
            decoder.before_step = lambda slots: None
            raise RuntimeError("the step is broken")

        with engine.queue.reading(touched), engine.queue.reading(spared):
            decoder.before_step = fail
            gate.open()
            assert_right(spared)
            finished(touched)
        assert {i.finish_reason for i in touched.images} == {FinishReason.ERROR}
        assert touched.error is not None
        assert "send the request again" in touched.error
        assert touched.id in caplog.text  # the log has the reason
        assert spared.error is None
        assert spared.id not in caplog.text
        after = engine.queue.submit(GenerationSpec(n=5, seed=3))
        with engine.queue.reading(after):
            assert_right(after)
        assert observer.reasons == {FinishReason.ERROR: 3, FinishReason.LENGTH: 7}
        assert_all_slots_free(engine, decoder)


@pytest.mark.parametrize("loaded", [False, True], ids=["at once", "after loading"])
def test_a_failing_load_ends_only_the_loaded_images(
    loaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = FakeDecoder(GREY, 3)
    gate = Gate(decoder)
    with running(decoder) as engine:
        runs = engine.queue.submit(GenerationSpec(n=1, seed=0))
        gate.wait()

        def fail(slots: Slots, inputs: InputBatch) -> None:
            monkeypatch.undo()
            if loaded:
                decoder.begin(slots, inputs)
            raise RuntimeError("beginning is broken")

        monkeypatch.setattr(decoder, "begin", fail)
        touched = engine.queue.submit(completion(GREY, 1, np.arange(GREY.pixels) < 8, n=4))
        with engine.queue.reading(runs), engine.queue.reading(touched):
            gate.open()
            finished(touched)
            assert {i.finish_reason for i in touched.images} == {FinishReason.ERROR}
            assert_right(runs)
        assert_all_slots_free(engine, decoder)
        after = engine.queue.submit(completion(GREY, 1, np.arange(GREY.pixels) < 8, n=4))
        with engine.queue.reading(after):
            assert_right(after)


@pytest.mark.slow
@EVERY_FAKE
def test_all_slots_are_free_after_thousands_of_random_events(
    decoders: type[FakeDecoder],
) -> None:
    observer = RecordingObserver()
    decoder = decoders(dataclasses.replace(GREY, height=2, width=2), 7)
    failures = random.Random(5)

    def sometimes(slots: list[int]) -> None:
        if failures.random() < 0.01:
            raise RuntimeError("now and then")

    decoder.before_step = decoder.before_load = sometimes
    generations: list[Generation] = []
    with running(decoder, observer, max_waiting=60, keep_finished=10, grace=0.0) as engine:

        def arrive(number: int) -> None:
            draw = random.Random(number)
            for _ in range(500):
                spec = GenerationSpec(n=draw.randint(1, 9), seed=draw.getrandbits(64))
                try:
                    generation = engine.queue.submit(spec)
                except QueueFullError:
                    time.sleep(0.001)
                    continue
                generations.append(generation)
                how = draw.random()
                with engine.queue.reading(generation):
                    if how < 0.5:
                        finished(generation)
                        if generation.error is None:
                            assert_right(generation)
                if how > 0.8:
                    engine.queue.cancel(generation)

        threads = [threading.Thread(target=arrive, args=(j,)) for j in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        until(lambda: all(generation.finished for generation in generations))
        asked = sum(generation.spec.n for generation in generations)
        assert asked > 1000
        assert sum(observer.reasons.values()) == asked
        assert set(observer.reasons) == set(FinishReason)
        kept = [g.spec.n for g in generations if engine.queue.find(g.id) is not None]
        assert sum(kept) <= 10
        assert engine.alive
        decoder.before_step = decoder.before_load = lambda slots: None
        assert_all_slots_free(engine, decoder)


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


def test_an_image_that_cannot_start_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images admitted together with it are drawn, and no slot is lost."""

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("scanline.service.engine.slots.ParticleFilter", fail)
    decoder = FakeDecoder(GREY, 5)
    with opened(decoder) as engine:
        specs = [
            GenerationSpec(n=1, seed=0),
            GenerationSpec(n=2, seed=5, sampling=SamplingParams(particles=2)),
            GenerationSpec(n=2, seed=9),
        ]
        before, touched, after = [engine.queue.submit(spec) for spec in specs]
        engine.start()
        for spared in (before, after):
            with engine.queue.reading(spared):
                assert_right(spared)
        finished(touched)
        assert touched.error is not None
        assert_all_slots_free(engine, decoder)


def test_an_image_that_cannot_start_ends_its_generation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An image of the same generation that just got slots loses them again."""

    def fail_second(config: ModelConfig, seed: int, *rest: Any) -> ParticleFilter:
        if seed == 6:
            raise MemoryError
        return ParticleFilter(config, seed, *rest)

    monkeypatch.setattr("scanline.service.engine.slots.ParticleFilter", fail_second)
    decoder = FakeDecoder(GREY, 6)
    with opened(decoder) as engine:
        touched, spared = [
            engine.queue.submit(spec)
            for spec in (
                GenerationSpec(n=3, seed=5, sampling=SamplingParams(particles=2)),
                GenerationSpec(n=1, seed=0),
            )
        ]
        engine.start()
        with engine.queue.reading(spared):
            assert_right(spared)
        finished(touched)
        assert {image.status for image in touched.images} == {Status.FINISHED}
        assert {image.finish_reason for image in touched.images} == {FinishReason.ERROR}
        assert_all_slots_free(engine, decoder)


@pytest.mark.parametrize(
    "where", [(ParticleFilter, "finish"), (Image, "finish")], ids=["particles", "image"]
)
def test_an_image_that_cannot_be_finished_ends_its_generation_only(
    where: tuple[type, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are complete at the same moment, or half drawn; no slot is lost."""
    finish = getattr(*where)

    def fail(self: ParticleFilter | Image, *rest: Any) -> None:
        if isinstance(self, ParticleFilter) or (self.seed == 5 and rest[0] is FinishReason.LENGTH):
            raise MemoryError
        finish(self, *rest)

    monkeypatch.setattr(*where, fail)
    decoder = FakeDecoder(GREY, 5)
    with opened(decoder) as engine:
        half = engine.queue.submit(GenerationSpec(n=1, seed=7))
        known = np.arange(GREY.pixels) < 13
        specs = [completion(GREY, seed, known) for seed in (0, 5, 9)]
        specs[1] = dataclasses.replace(specs[1], sampling=SamplingParams(particles=2))
        before, touched, after = [engine.queue.submit(spec) for spec in specs]
        engine.start()
        for spared in (before, after, half):
            with engine.queue.reading(spared):
                assert_right(spared)
        finished(touched)
        assert touched.error is not None
        monkeypatch.undo()
        assert_all_slots_free(engine, decoder)


@pytest.mark.parametrize("method", ["first_pixel", "finished", "ended"])
def test_a_failing_observer_ends_one_generation_only(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three generations are complete at the same moment; only the reported one ends in an error."""
    observer = RecordingObserver()
    original = getattr(observer, method)

    def fail(what: object) -> None:
        monkeypatch.setattr(observer, method, original)
        raise MemoryError

    monkeypatch.setattr(observer, method, fail)
    decoder = FakeDecoder(GREY, 3)
    with opened(decoder, observer) as engine:
        generations = [engine.queue.submit(GenerationSpec(n=1, seed=seed)) for seed in range(3)]
        engine.start()
        for generation in generations:
            with engine.queue.reading(generation):
                finished(generation)
        reasons = [generation.images[0].finish_reason for generation in generations]
        first = FinishReason.ERROR if method == "first_pixel" else FinishReason.LENGTH
        assert reasons == [first, FinishReason.LENGTH, FinishReason.LENGTH]
        errors = [generation.error is not None for generation in generations]
        assert errors == [method != "ended", False, False]
        assert [generation.unfinished for generation in generations] == [0, 0, 0]
        assert_all_slots_free(engine, decoder)


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
