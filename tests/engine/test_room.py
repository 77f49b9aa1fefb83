"""What is bounded: images waiting, with a sane time to come back, and finished ones kept."""

from __future__ import annotations

import pytest

from scanline.service.engine import Engine
from scanline.service.generation import Generation, Spec, Status
from scanline.service.queue import QueueFullError
from tests.clocks import Clock
from tests.engine.fixtures import Gate, assert_right, opened, running
from tests.service_fixtures import GREY, FakeDecoder, until


def test_the_waiting_bound_refuses_with_a_sane_wait() -> None:
    decoder = FakeDecoder(GREY, 1)
    gate = Gate(decoder)
    with running(decoder, max_waiting=10) as engine:
        with pytest.raises(QueueFullError) as error:
            engine.queue.submit(Spec(n=11, seed=0))
        assert error.value.retry_after == 1  # nothing measured yet
        first = engine.queue.submit(Spec(n=1, seed=0))
        gate.wait()
        second = engine.queue.submit(Spec(n=10, seed=0))
        assert engine.queue.waiting == 10
        for refused in (engine.queue.submit, lambda r: engine.queue.check_room(r.n)):
            with pytest.raises(QueueFullError, match="try again in"):
                refused(Spec(n=1, seed=0))
        assert engine.queue.waiting == 10
        for rate, seconds in ((100.0, 3), (1e9, 1), (1e-9, 120)):  # 3.3 s: 11 images of 30 pixels
            engine.queue.rate = rate
            with pytest.raises(QueueFullError) as error:
                engine.queue.check_room(1)
            assert error.value.retry_after == seconds
        gate.open()
        for generation in (first, second):
            with engine.queue.reading(generation):
                assert_right(generation)
        engine.queue.check_room(10)


def test_the_time_to_come_back_counts_what_waits_and_what_runs_and_nothing_else() -> None:
    decoder = FakeDecoder(GREY, 3)
    said: list[tuple[int, int]] = []  # seconds, and images not finished
    with opened(decoder, max_waiting=9) as engine:
        generations = [engine.queue.submit(Spec(n=n, seed=n)) for n in (5, 4)]

        def ask(slots: list[int]) -> None:
            engine.queue.rate = float(GREY.pixels)  # an image a second
            images = [image for generation in generations for image in generation.images]
            unfinished = sum(image.status is not Status.FINISHED for image in images)
            try:
                engine.queue.check_room(9)
            except QueueFullError as error:
                said.append((error.retry_after, unfinished))

        decoder.before_step = ask
        engine.start()
        for generation in generations:
            with engine.queue.reading(generation):
                assert_right(generation)
    assert {unfinished for _, unfinished in said} == {9, 6}  # three at a time
    assert [seconds for seconds, _ in said] == [unfinished for _, unfinished in said]


def test_the_time_to_come_back_counts_every_slot_of_an_image() -> None:
    with opened(FakeDecoder(GREY, 4), max_waiting=5) as engine:
        guided = engine.queue.submit(Spec(n=3, seed=0, label=1, guidance=2.0))
        plain = engine.queue.submit(Spec(n=2, seed=0))
        engine.queue.rate = float(GREY.pixels)  # a slot's image a second
        with pytest.raises(QueueFullError) as error:
            engine.queue.check_room(1)
        assert error.value.retry_after == 3 * 2 + 2
        engine.start()
        with engine.queue.reading(guided), engine.queue.reading(plain):
            assert_right(guided)
            assert_right(plain)


def kept(engine: Engine, generations: list[Generation]) -> list[Generation]:
    return [one for one in generations if engine.queue.find(one.id) is one]


def test_finished_generations_are_kept_by_count() -> None:
    with running(FakeDecoder(GREY, 4), keep_finished=3) as engine:
        generations = [engine.queue.submit(Spec(n=1, seed=seed)) for seed in range(8)]
        for generation in generations:
            with engine.queue.reading(generation):
                assert_right(generation)
        until(lambda: len(kept(engine, generations)) == 3)
    with running(FakeDecoder(GREY, 1), keep_finished=0) as engine:
        generation = engine.queue.submit(Spec(n=1, seed=0))
        with engine.queue.reading(generation):
            assert_right(generation)
        until(lambda: engine.queue.find(generation.id) is None)


def test_finished_generations_are_kept_by_time() -> None:
    clock = Clock()
    with running(FakeDecoder(GREY, 4), clock=clock, keep_seconds=300.0) as engine:
        generation = engine.queue.submit(Spec(n=1, seed=0))
        with engine.queue.reading(generation):
            assert_right(generation)
        clock.now += 300
        assert engine.queue.find(generation.id) is generation
        clock.now += 1
        assert engine.queue.find(generation.id) is None
