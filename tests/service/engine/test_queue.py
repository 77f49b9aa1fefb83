"""What is bounded: images waiting, with a sane time to come back, and finished ones kept."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from scanline.service.engine.engine import Engine
from scanline.service.engine.generation import Generation, GenerationSpec
from scanline.service.engine.queue import Queue, QueueFullError, QueueLimits
from scanline.service.engine.queue_snapshot import MAX_AGE_SECONDS
from tests.fake_clock import Clock
from tests.service.engine.fixtures import Gate, assert_right, completion, running
from tests.service.fixtures import GREY, FakeDecoder, until


def test_the_waiting_bound_refuses_with_a_sane_wait() -> None:
    decoder, clock = FakeDecoder(GREY, 1), Clock()
    gate = Gate(decoder)
    with running(decoder, clock=clock, max_waiting=10) as engine:
        with pytest.raises(QueueFullError) as error:
            engine.queue.submit(GenerationSpec(n=11, seed=0))
        assert error.value.retry_after == 1  # nothing measured yet
        first = engine.queue.submit(GenerationSpec(n=1, seed=0))
        gate.wait()
        second = engine.queue.submit(GenerationSpec(n=10, seed=0))
        assert engine.queue.waiting == 10
        with pytest.raises(QueueFullError, match="try again in"):
            engine.queue.submit(GenerationSpec(n=1, seed=0), caller="another")
        assert engine.queue.waiting == 10
        clock.now += MAX_AGE_SECONDS
        for rate, seconds in ((10.0, 3), (1e9, 1), (1e-9, 120)):  # 30 pixels until one is taken
            engine.queue.rate = rate
            with pytest.raises(QueueFullError) as error:
                engine.queue.check_capacity(1, "another")
            assert error.value.retry_after == seconds
        gate.open()
        for generation in (first, second):
            with engine.queue.reading(generation):
                assert_right(generation)
        engine.queue.check_capacity(10)


def test_thousands_who_wait_ask_for_their_place_at_the_cost_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoder, clock = FakeDecoder(GREY, 1), Clock()
    gate = Gate(decoder)
    with running(decoder, clock=clock) as engine:
        queue = engine.queue
        queue.submit(GenerationSpec(n=1, seed=0))
        gate.wait()
        waiting = [queue.submit(GenerationSpec(n=1, seed=0)) for _ in range(20)]
        queue.rate = 30.0  # an image a second
        counted: list[Generation] = []
        count = Generation.remaining_pixels

        def remaining_pixels(self: Generation) -> list[int]:
            counted.append(self)
            return count(self)

        monkeypatch.setattr(Generation, "remaining_pixels", remaining_pixels)
        assert [queue.estimate_wait(one) for one in waiting] == [(j, j + 1.0) for j in range(20)]
        late = queue.submit(GenerationSpec(n=1, seed=0))
        assert queue.estimate_wait(late) == (20, 21.0)
        assert len(counted) == 21
        queue.cancel(waiting[0])
        gate.turn()
        clock.now += MAX_AGE_SECONDS
        assert queue.estimate_wait(late)[0] == 19
        for one in (*waiting, late):
            queue.cancel(one)
        gate.open()


def test_large_requests_and_those_of_one_caller_leave_room_for_others() -> None:
    decoder = FakeDecoder(GREY, 1)
    gate = Gate(decoder)
    with running(decoder, max_waiting=512) as engine:
        first = engine.queue.submit(GenerationSpec(n=1, seed=0))
        gate.wait()
        large = engine.queue.submit(
            GenerationSpec(n=512, seed=0)
        )  # nobody else waits: it may have it all
        with pytest.raises(QueueFullError):
            engine.queue.check_capacity(1)
        engine.queue.cancel(large)
        gate.turn()
        until(lambda: engine.queue.waiting == 0)
        for _ in range(7):
            engine.queue.submit(GenerationSpec(n=60, seed=0))
        for n in (29, 60):  # of 512 places, an eighth is not for one who waits already
            with pytest.raises(QueueFullError):
                engine.queue.check_capacity(n)
        engine.queue.submit(GenerationSpec(n=28, seed=0))
        with pytest.raises(QueueFullError):
            engine.queue.check_capacity(1)
        engine.queue.submit(GenerationSpec(n=48, seed=0), caller="large")
        with pytest.raises(QueueFullError):  # and the last sixteen are for small requests
            engine.queue.check_capacity(3, "another")
        for j in range(8):
            engine.queue.submit(GenerationSpec(n=2, seed=0), caller=str(j))
        with pytest.raises(QueueFullError):
            engine.queue.check_capacity(1, "another")
        engine.queue.cancel(first)
        gate.open()


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({"n": 12}, {1: 2, 2: 3, 3: 5, 9: 14, 10: 15}),
        ({"n": 11, "label": 1, "guidance": 2.0}, {1: 2, 2: 5, 9: 26}),
    ],
    ids=["two at a time", "guided, one at a time"],
)
def test_the_time_to_come_back_is_until_there_is_room_for_what_is_asked(
    fields: dict[str, Any], seconds: dict[int, int]
) -> None:
    decoder = FakeDecoder(GREY, 2)
    gate = Gate(decoder)
    known = np.arange(GREY.pixels) < 9
    spec = dataclasses.replace(completion(GREY, 0, known), **fields)
    with running(decoder, clock=Clock(), max_waiting=12) as engine:
        generation = engine.queue.submit(spec)
        gate.wait()
        gate.turn()  # of one pixel; then the second image has prefilled what is known of it
        assert generation.images[0].position == 10
        # So that what runs takes two more seconds, a little more in its second slot, and an image
        # three in all.
        engine.queue.rate = 2 * 30 / 3
        assert engine.queue.waiting == 10
        said = {}
        full = engine.queue.limits.max_waiting - 10
        for wanted in seconds:
            with pytest.raises(QueueFullError) as error:
                engine.queue.check_capacity(wanted + full, "another")
            said[wanted] = error.value.retry_after
        gate.open()
        engine.queue.cancel(generation)
    assert said == seconds


def kept(engine: Engine, generations: list[Generation]) -> list[Generation]:
    return [one for one in generations if engine.queue.find(one.id) is one]


def test_finished_generations_are_kept_by_count() -> None:
    with running(FakeDecoder(GREY, 4), keep_finished=3) as engine:
        generations = [engine.queue.submit(GenerationSpec(n=1, seed=seed)) for seed in range(8)]
        for generation in generations:
            with engine.queue.reading(generation):
                assert_right(generation)
        until(lambda: len(kept(engine, generations)) == 3)
    with running(FakeDecoder(GREY, 1), keep_finished=0) as engine:
        generation = engine.queue.submit(GenerationSpec(n=1, seed=0))
        with engine.queue.reading(generation):
            assert_right(generation)
        until(lambda: engine.queue.find(generation.id) is None)


def finished(queue: Queue, n: int, caller: str = "") -> Generation:
    generation = queue.submit(GenerationSpec(n=n, seed=0), caller=caller)
    queue.withdraw(generation)
    queue.finish(generation)
    return generation


def there(queue: Queue, *generations: Generation) -> list[bool]:
    return [queue.find(one.id) is one for one in generations]


def test_a_crowd_of_finished_ones_pushes_out_its_own() -> None:
    """Drawn or cancelled: what another caller has finished stays, and so does what is new."""
    queue = Queue("it", GREY, QueueLimits(keep_finished=16), Clock())
    few = [finished(queue, 1, "few") for _ in range(4)]
    crowd = [finished(queue, 3, "crowd") for _ in range(40)]
    assert there(queue, *few) == [True] * 4
    assert there(queue, *crowd) == [False] * 36 + [True] * 4
    # Nobody has a large share but the one that comes, and that is not pushed out by itself.
    large = finished(queue, 16, "large")
    assert there(queue, large, *few, *crowd[36:]) == [True] + [False] * 8
    assert there(queue, finished(queue, 17, "large"), large) == [True, False]


def test_of_a_caller_of_whom_nothing_is_kept_nothing_is_known() -> None:
    """Or each address that ever asked would stay in memory."""
    clock = Clock()
    queue = Queue("it", GREY, QueueLimits(keep_finished=4, keep_seconds=10), clock)
    for caller in range(100):
        finished(queue, 1, str(caller))
    assert len(queue._results._images) == len(queue._results._by_caller) == 4
    clock.now += 11
    assert queue.find("none") is None
    assert not queue._results._images
    assert not queue._results._by_caller


def test_what_is_no_longer_kept_makes_nobody_a_crowd() -> None:
    queue = Queue("it", GREY, QueueLimits(keep_finished=8), Clock())
    generations = [finished(queue, 1, caller) for caller in "abacdefgha"]
    assert there(queue, *generations) == [False] * 2 + [True] * 8  # the oldest go, whoever's


def test_of_large_images_fewer_are_kept_and_the_last_generation_whatever_its_size() -> None:
    """Of 1,024 x 1,024 pixels in colour, 7 MiB each with what was given of it, 256 MiB hold 36."""
    config = dataclasses.replace(GREY, height=1024, width=1024, channels=3)
    queue = Queue("it", config, QueueLimits(), Clock())
    first, second = finished(queue, 20), finished(queue, 16)
    assert there(queue, first, second) == [True, True]
    third = finished(queue, 1)
    assert there(queue, first, second, third) == [False, True, True]
    assert there(queue, finished(queue, 256), second, third) == [True, False, False]


def test_what_nothing_is_known_of_takes_no_memory_and_what_is_known_is_held_once() -> None:
    blank = Generation("it", GREY, GenerationSpec(n=2, seed=0)).images[0]
    assert not blank.preview(0).any()
    assert blank._initial_pixels.strides == (0, 0)
    spec = completion(GREY, 0, np.arange(GREY.pixels) < 13)
    known = Generation("it", GREY, spec)
    assert known.spec.canvas is known.images[0]._initial_pixels
    assert known.spec.canvas is not None
    assert spec.canvas is not None
    np.testing.assert_array_equal(known.spec.canvas[:13], spec.canvas[:13])
    assert not known.spec.canvas[13:].any()


def test_finished_generations_are_kept_by_time() -> None:
    clock = Clock()
    with running(FakeDecoder(GREY, 4), clock=clock, keep_seconds=300.0) as engine:
        generation = engine.queue.submit(GenerationSpec(n=1, seed=0))
        with engine.queue.reading(generation):
            assert_right(generation)
        clock.now += 300
        assert engine.queue.find(generation.id) is generation
        clock.now += 1
        assert engine.queue.find(generation.id) is None


def test_a_small_queue_keeps_room_for_a_single_image() -> None:
    decoder = FakeDecoder(GREY, 1)
    gate = Gate(decoder)
    with running(decoder, max_waiting=32) as engine:
        engine.queue.submit(GenerationSpec(n=1, seed=0))
        gate.wait()
        spec = GenerationSpec(n=2, seed=0)
        generations = [engine.queue.submit(spec, caller=str(j)) for j in range(15)]
        with pytest.raises(QueueFullError):
            engine.queue.check_capacity(2, "another")
        engine.queue.check_capacity(1, "another")
        for one in generations:
            engine.queue.cancel(one)
        gate.open()
