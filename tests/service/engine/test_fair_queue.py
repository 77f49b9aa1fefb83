"""Fairness between callers in the queue."""

from __future__ import annotations

import pytest

from scanline.service.engine.fair_queue import FairQueue
from scanline.service.engine.generation import Generation, GenerationSpec
from scanline.service.engine.queue_limits import RefusedError
from tests.service.engine.fixtures import Gate, running, seeds_in
from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import GREY, until


def waiting(caller: str, n: int) -> Generation:
    return Generation("fake", GREY, GenerationSpec(n=n, seed=0), caller=caller)


def take_all(queue: FairQueue) -> list[Generation]:
    """Take all images in order, and return their generations."""
    found: list[Generation] = []
    while queue:
        found.append(queue.peek())
        found[-1].next_index += 1
        queue.rotate(found[-1])
    return found


def test_queue_positions_match_the_order_of_admission() -> None:
    """With several callers, small and large requests, and images taken in between."""
    queue = FairQueue()
    generations: list[Generation] = []
    for caller, n in zip("abacaabddcbbab", (1, 3, 9, 2, 1, 4, 1, 2, 1, 1, 2, 1, 3, 1), strict=True):
        expected = queue.images_before(caller)
        queue.add(new := waiting(caller, n))
        generations.append(new)
        images = list(queue.iter_images())
        assert images.index(new) == expected
        assert len(images) == sum(one.waiting for one in generations)
        assert set(queue) == {one for one in generations if one.waiting}
        if n % 2 == 0:  # take an image in between
            (following := queue.peek()).next_index += 1
            queue.rotate(following)
    images_in_order = list(queue.iter_images())
    assert take_all(queue) == images_in_order
    assert not any(queue.has_waiting(caller) for caller in "abcd")


def test_a_removed_generation_does_not_block_others() -> None:
    queue = FairQueue()
    a, b, c = waiting("a", 2), waiting("a", 1), waiting("b", 1)
    for one in (a, b, c):
        queue.add(one)
    assert a in queue
    queue.remove(a)
    assert a not in queue
    assert take_all(queue) == [b, c]
    assert a not in queue


def test_a_caller_with_many_requests_delays_another_by_one_image_per_round() -> None:
    decoder = FakeDecoder(GREY, 1)
    gate, generations, admitted = Gate(decoder), list[Generation](), list[int]()
    decoder.before_load = lambda slots: admitted.extend(seeds_in(slots, engine))
    with running(decoder) as engine:
        for seed in range(0, 100, 10):
            generations.append(engine.queue.submit(GenerationSpec(n=2, seed=seed), caller="many"))
            if seed == 0:
                gate.wait()
        other = [
            engine.queue.submit(GenerationSpec(n=2, seed=500 + 2 * j), caller="few")
            for j in range(2)
        ]
        assert [one.queue_position for one in other] == [1, 3]
        assert [engine.queue.estimate_wait(one)[0] for one in other] == [1, 3]
        generations += other
        gate.open()
        for generation in generations:
            with engine.queue.reading(generation):
                until(lambda one=generation: one.finished)  # type: ignore[misc]
    assert admitted[:9] == [0, 1, 500, 10, 502, 20, 501, 30, 503]


def test_a_caller_cannot_fill_the_queue_alone() -> None:
    decoder = FakeDecoder(GREY, 1)
    gate = Gate(decoder)
    with running(decoder, max_waiting=512) as engine:
        submit = engine.queue.submit
        live = [submit(GenerationSpec(n=1, seed=0), caller="many")]
        gate.wait()
        live += [submit(GenerationSpec(n=2, seed=0), caller="many") for _ in range(224)]
        with pytest.raises(RefusedError):  # an eighth of the places is reserved for others
            submit(GenerationSpec(n=1, seed=0), caller="many")
        live += [submit(GenerationSpec(n=1, seed=0), caller=f"another {j}") for j in range(64)]
        with pytest.raises(RefusedError):
            engine.queue.check_capacity(1, "one more")
        for one in live:
            engine.queue.cancel(one)
        gate.open()
