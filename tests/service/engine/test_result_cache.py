"""The cache of finished generations, by way of the queue."""

from __future__ import annotations

import dataclasses

from scanline.service.engine.engine import Engine
from scanline.service.engine.generation import Generation, GenerationSpec
from scanline.service.engine.queue import Queue
from scanline.service.engine.queue_limits import QueueLimits
from tests.fake_clock import Clock
from tests.service.engine.fixtures import assert_right, running
from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import GREY, until


def cached(engine: Engine, generations: list[Generation]) -> list[Generation]:
    return [one for one in generations if engine.queue.find(one.id) is one]


def test_the_result_cache_is_bounded_by_images() -> None:
    with running(FakeDecoder(GREY, 4), keep_finished=3) as engine:
        generations = [engine.queue.submit(GenerationSpec(n=1, seed=seed)) for seed in range(8)]
        for generation in generations:
            with engine.queue.reading(generation):
                assert_right(generation)
        until(lambda: len(cached(engine, generations)) == 3)
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


def in_cache(queue: Queue, *generations: Generation) -> list[bool]:
    return [queue.find(one.id) is one for one in generations]


def test_a_caller_with_many_results_evicts_its_own() -> None:
    """Another caller's results stay, drawn or cancelled, and so does the newest result."""
    queue = Queue("it", GREY, QueueLimits(keep_finished=16), Clock())
    few = [finished(queue, 1, "few") for _ in range(4)]
    many = [finished(queue, 3, "many") for _ in range(40)]
    assert in_cache(queue, *few) == [True] * 4
    assert in_cache(queue, *many) == [False] * 36 + [True] * 4
    # Only the new generation has a large share, and it does not evict itself.
    large = finished(queue, 16, "large")
    assert in_cache(queue, large, *few, *many[36:]) == [True] + [False] * 8
    assert in_cache(queue, finished(queue, 17, "large"), large) == [True, False]


def test_the_result_cache_forgets_callers_without_results() -> None:
    """Otherwise every client address would stay in memory forever."""
    clock = Clock()
    queue = Queue("it", GREY, QueueLimits(keep_finished=4, keep_seconds=10), clock)
    for caller in range(100):
        finished(queue, 1, str(caller))
    assert len(queue._results._images) == len(queue._results._by_caller) == 4
    clock.now += 11
    assert queue.find("none") is None
    assert not queue._results._images
    assert not queue._results._by_caller


def test_evicted_results_do_not_count_for_their_caller() -> None:
    queue = Queue("it", GREY, QueueLimits(keep_finished=8), Clock())
    generations = [finished(queue, 1, caller) for caller in "abacdefgha"]
    # The oldest are evicted.
    assert in_cache(queue, *generations) == [False] * 2 + [True] * 8


def test_the_result_cache_keeps_fewer_large_images_but_always_the_last_generation() -> None:
    """Colour images of 1,024 x 1,024 pixels take 7 MiB with canvas and mask; 36 fit in 256 MiB."""
    config = dataclasses.replace(GREY, height=1024, width=1024, channels=3, head="logistic_mixture")
    queue = Queue("it", config, QueueLimits(), Clock())
    first, second = finished(queue, 20), finished(queue, 16)
    assert in_cache(queue, first, second) == [True, True]
    third = finished(queue, 1)
    assert in_cache(queue, first, second, third) == [False, True, True]
    assert in_cache(queue, finished(queue, 256), second, third) == [True, False, False]


def test_the_result_cache_is_bounded_by_age() -> None:
    clock = Clock()
    with running(FakeDecoder(GREY, 4), clock=clock, keep_seconds=300.0) as engine:
        generation = engine.queue.submit(GenerationSpec(n=1, seed=0))
        with engine.queue.reading(generation):
            assert_right(generation)
        clock.now += 300
        assert engine.queue.find(generation.id) is generation
        clock.now += 1
        assert engine.queue.find(generation.id) is None
