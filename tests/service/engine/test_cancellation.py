"""Generations that are cancelled, or whose readers leave: what they held goes to others."""

from __future__ import annotations

import numpy as np
import pytest

from scanline.service.engine.generation import FinishReason, Generation, GenerationSpec, Status
from scanline.service.engine.queue import Queue, QueueLimits
from tests.fake_clock import Clock
from tests.service.engine.fixtures import (
    BOTH,
    Gate,
    RecordingObserver,
    assert_all_slots_free,
    assert_right,
    finished,
    running,
)
from tests.service.fixtures import GREY, FakeDecoder, fake_image, until


def reasons(generation: Generation) -> list[FinishReason | None]:
    finished(generation)
    return [image.finish_reason for image in generation.images]


@BOTH
def test_cancelling_what_waits_and_what_runs_leaves_others_alone(
    decoders: type[FakeDecoder],
) -> None:
    heard = RecordingObserver()
    decoder = decoders(GREY, 2)
    gate = Gate(decoder)
    with running(decoder, heard) as engine:
        runs = engine.queue.submit(GenerationSpec(n=3, seed=0))  # two run, one waits
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
        # What was drawn stays readable, and is right.
        image = runs.images[0]
        assert 0 < image.position < GREY.pixels
        expected = fake_image(GREY, runs.spec, 0)[: image.position]
        np.testing.assert_array_equal(image.read(0, image.position), expected)
        assert not image.read(image.position, GREY.pixels).any()
        assert image.bits is None
        engine.queue.cancel(runs)  # once more, when it is over
        assert heard.reasons == {FinishReason.CANCELLED: 7, FinishReason.LENGTH: 2}
        assert_all_slots_free(engine, decoder)


def test_a_reader_who_comes_after_a_cancel_does_not_undo_it() -> None:
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


def test_the_last_reader_to_leave_lets_a_generation_go_after_the_grace() -> None:
    decoder, clock = FakeDecoder(GREY, 1), Clock()
    gate = Gate(decoder)
    with running(decoder, clock=clock, grace=3.0) as engine:
        generation = engine.queue.submit(GenerationSpec(n=100, seed=0))
        gate.wait()
        with engine.queue.reading(generation):
            with engine.queue.reading(generation):
                pass
            clock.now += 100  # one reader is still there
            gate.turn(2)
            assert generation.status is Status.RUNNING
        clock.now += 2.9
        gate.turn(2)
        assert generation.status is Status.RUNNING
        with engine.queue.reading(generation):  # back in time
            clock.now += 100
            gate.turn(2)
            assert generation.status is Status.RUNNING
        clock.now += 3
        gate.let(1)
        assert reasons(generation)[-1] is FinishReason.CANCELLED
        assert engine.slots_in_use == 0


def test_without_grace_the_last_reader_takes_the_generation_along() -> None:
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


def test_no_grace_does_not_cancel_what_its_reader_has_not_reached_yet() -> None:
    with running(FakeDecoder(GREY, 1), clock=Clock(), grace=0.0) as engine:
        generation = engine.queue.submit(GenerationSpec(n=20, seed=0))
        until(lambda: generation.images[3].status is Status.FINISHED)  # nobody has come so far
        with engine.queue.reading(generation):
            assert_right(generation)


@pytest.mark.parametrize(("grace", "patience"), [(0.5, 5.0), (20.0, 20.0)])
def test_what_nobody_ever_reads_is_cancelled(grace: float, patience: float) -> None:
    decoder, clock = FakeDecoder(GREY, 1), Clock()
    gate = Gate(decoder)
    with running(decoder, clock=clock, grace=grace) as engine:
        generation = engine.queue.submit(GenerationSpec(n=100, seed=0))
        gate.wait()
        clock.now += patience - 0.1
        gate.turn(2)
        assert generation.status is Status.RUNNING
        clock.now += 0.1
        gate.let(1)
        assert reasons(generation)[-1] is FinishReason.CANCELLED


def test_one_who_is_expected_costs_those_who_read_nothing() -> None:
    clock = Clock()
    queue = Queue("it", GREY, QueueLimits(), clock)
    generation = queue.submit(GenerationSpec(n=1, seed=0))
    with queue.reading(generation):
        assert queue.reattach(generation)
        clock.now += 1000
        assert queue.pop_abandoned() == []


def test_what_is_cancelled_does_not_go_on_in_the_background() -> None:
    queue = Queue("it", GREY, QueueLimits(), Clock())
    generation = queue.submit(GenerationSpec(n=1, seed=0))
    queue.cancel(generation)
    queue.detach(generation)
    assert queue.pop_abandoned() == [generation]
