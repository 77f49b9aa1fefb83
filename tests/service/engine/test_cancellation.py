"""Cancellation of generations, by request or because their readers left."""

from __future__ import annotations

import numpy as np
import pytest

from scanline.service.engine.generation import Generation, GenerationSpec, GenerationStatus
from scanline.service.engine.image import FinishReason, Status
from scanline.service.engine.queue import Queue
from scanline.service.engine.queue_limits import QueueLimits
from tests.fake_clock import Clock
from tests.service.engine.fixtures import (
    EVERY_FAKE,
    Gate,
    RecordingObserver,
    assert_all_slots_free,
    assert_right,
    finished,
    running,
)
from tests.service.fake_decoders import FakeDecoder, fake_image
from tests.service.fixtures import GREY, until


def reasons(generation: Generation) -> list[FinishReason | None]:
    finished(generation)
    return [image.finish_reason for image in generation.images]


@EVERY_FAKE
def test_cancelling_waiting_and_running_generations_does_not_affect_others(
    decoders: type[FakeDecoder],
) -> None:
    observer = RecordingObserver()
    decoder = decoders(GREY, 2)
    gate = Gate(decoder)
    with running(decoder, observer) as engine:
        runs = engine.queue.submit(GenerationSpec(n=3, seed=0))  # two images run, one waits
        gate.wait()
        waits, other = (
            engine.queue.submit(GenerationSpec(n=4, seed=10)),
            engine.queue.submit(GenerationSpec(n=2, seed=20)),
        )
        gate.let(3)
        until(lambda: runs.images[0].position > 0)
        engine.queue.cancel(runs)
        engine.queue.cancel(waits)
        engine.queue.cancel(waits)
        with engine.queue.reading(other):
            gate.open()
            assert_right(other)
        for cancelled in (runs, waits):
            assert set(reasons(cancelled)) == {FinishReason.CANCELLED}
            assert cancelled.error is None
        # The pixels drawn so far stay readable and are correct.
        image = runs.images[0]
        assert 0 < image.position < GREY.pixels
        expected = fake_image(GREY, runs.spec, 0)[: image.position]
        np.testing.assert_array_equal(image.read(0, image.position), expected)
        assert not image.read(image.position, GREY.pixels).any()
        assert image.bits is None
        engine.queue.cancel(runs)  # again, after the end
        assert observer.reasons == {FinishReason.CANCELLED: 7, FinishReason.LENGTH: 2}
        assert_all_slots_free(engine, decoder)


def test_a_reader_after_a_cancel_does_not_undo_it() -> None:
    decoder = FakeDecoder(GREY, 1)
    gate = Gate(decoder)
    with running(decoder) as engine:
        runs = engine.queue.submit(GenerationSpec(n=2, seed=0))
        gate.wait()
        waits = engine.queue.submit(GenerationSpec(n=1, seed=10))
        for generation in (runs, waits):
            engine.queue.cancel(generation)
        with engine.queue.reading(runs), engine.queue.reading(waits):
            gate.open()
            assert reasons(runs) == [FinishReason.CANCELLED] * 2
            assert reasons(waits) == [FinishReason.CANCELLED]


def test_a_generation_without_readers_is_cancelled_after_the_grace_time() -> None:
    decoder, clock = FakeDecoder(GREY, 1), Clock()
    gate = Gate(decoder)
    with running(decoder, clock=clock, grace=3.0) as engine:
        generation = engine.queue.submit(GenerationSpec(n=100, seed=0))
        gate.wait()
        with engine.queue.reading(generation):
            with engine.queue.reading(generation):
                pass
            clock.now += 100  # one reader is left
            gate.turn(2)
            assert generation.status is GenerationStatus.RUNNING
        clock.now += 2.9
        gate.turn(2)
        assert generation.status is GenerationStatus.RUNNING
        with engine.queue.reading(generation):  # a reader returns in time
            clock.now += 100
            gate.turn(2)
            assert generation.status is GenerationStatus.RUNNING
        clock.now += 3
        gate.let(1)
        assert reasons(generation)[-1] is FinishReason.CANCELLED
        assert engine.slots_in_use == 0


def test_without_grace_time_a_generation_ends_with_its_last_reader() -> None:
    decoder = FakeDecoder(GREY, 1)
    gate = Gate(decoder)
    with running(decoder, grace=1e6) as engine:
        generation = engine.queue.submit(GenerationSpec(n=100, seed=0))
        gate.wait()
        with engine.queue.reading(generation, grace=0):
            pass
        gate.let(1)
        assert set(reasons(generation)) == {FinishReason.CANCELLED}
        assert engine.slots_in_use == 0


def test_without_grace_time_a_generation_still_waits_for_its_first_reader() -> None:
    with running(FakeDecoder(GREY, 1), clock=Clock(), grace=0.0) as engine:
        generation = engine.queue.submit(GenerationSpec(n=20, seed=0))
        until(lambda: generation.images[3].status is Status.FINISHED)  # no reader so far
        with engine.queue.reading(generation):
            assert_right(generation)


@pytest.mark.parametrize(("grace", "patience"), [(0.5, 5.0), (20.0, 20.0)])
def test_a_generation_that_nobody_reads_is_cancelled(grace: float, patience: float) -> None:
    decoder, clock = FakeDecoder(GREY, 1), Clock()
    gate = Gate(decoder)
    with running(decoder, clock=clock, grace=grace) as engine:
        generation = engine.queue.submit(GenerationSpec(n=100, seed=0))
        gate.wait()
        clock.now += patience - 0.1
        gate.turn(2)
        assert generation.status is GenerationStatus.RUNNING
        clock.now += 0.1
        gate.let(1)
        assert reasons(generation)[-1] is FinishReason.CANCELLED


def test_reattaching_does_not_affect_present_readers() -> None:
    clock = Clock()
    queue = Queue("it", GREY, QueueLimits(), clock)
    generation = queue.submit(GenerationSpec(n=1, seed=0))
    with queue.reading(generation):
        assert queue.reattach(generation)
        clock.now += 1000
        assert queue.pop_abandoned() == []


def test_detaching_does_not_undo_a_cancel() -> None:
    queue = Queue("it", GREY, QueueLimits(), Clock())
    generation = queue.submit(GenerationSpec(n=1, seed=0))
    queue.cancel(generation)
    queue.detach(generation)
    assert queue.pop_abandoned() == [generation]
