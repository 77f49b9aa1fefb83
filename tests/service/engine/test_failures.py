"""Failures of a step, an image or an observer: only affected generations end, no slot is lost."""

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
from scanline.service.engine.generation import Generation, GenerationSpec
from scanline.service.engine.image import FinishReason, Image, Status
from scanline.service.engine.queue_limits import RefusedError
from tests.service.engine.fixtures import (
    EVERY_FAKE,
    Gate,
    RecordingObserver,
    assert_all_slots_free,
    assert_right,
    completion,
    finished,
    opened,
    running,
)
from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import GREY, until


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
                except RefusedError:
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
