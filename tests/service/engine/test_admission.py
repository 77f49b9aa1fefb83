"""Admission of images to slots, and the length of steps."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace

import numpy as np
import pytest

from scanline.model.sampling import SamplingParams
from scanline.service.engine.fair_queue import AdmissionLimits
from scanline.service.engine.generation import Generation, GenerationSpec, GenerationStatus
from scanline.service.engine.queue import Queue
from scanline.service.engine.queue_limits import QueueLimits
from scanline.service.engine.time_share import MAX_STEP_SECONDS, STEP_SECONDS
from tests.fake_clock import Clock
from tests.service.engine.fixtures import (
    Gate,
    assert_right,
    completion,
    finished,
    opened,
    running,
    seeds_in,
)
from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import GREY, until

WIDE = replace(GREY, height=4, width=8)
FOUR_FREE = AdmissionLimits(free=4, spare=4, at_once=4, largest_demand=8)


def test_requests_are_admitted_in_turn_so_a_small_one_is_not_starved() -> None:
    decoder = FakeDecoder(GREY, 2)
    held, submitted = threading.Event(), threading.Event()
    generations: list[Generation] = []
    order: list[int] = []  # seeds in order of admission

    def note(slots: list[int]) -> None:
        held.set()
        submitted.wait()
        order.extend(seeds_in(slots, engine))

    decoder.before_load = note
    with running(decoder) as engine:
        try:
            generations.append(large := engine.queue.submit(GenerationSpec(n=500, seed=0)))
            held.wait()
            generations.append(small := engine.queue.submit(GenerationSpec(n=1, seed=1000)))
            generations.append(middle := engine.queue.submit(GenerationSpec(n=2, seed=2000)))
            assert small.queue_position == 1
            assert middle.queue_position == 2
        finally:
            submitted.set()
        with engine.queue.reading(large), engine.queue.reading(small), engine.queue.reading(middle):
            assert_right(small)
            assert_right(middle)
            engine.queue.cancel(large)
            finished(large)
    assert order[:8] == [0, 1, 2, 1000, 2000, 3, 2001, 4]


def test_an_image_is_admitted_between_two_steps() -> None:
    decoder = FakeDecoder(GREY, 2)
    gate = Gate(decoder)
    with running(decoder) as engine:
        first = engine.queue.submit(GenerationSpec(n=1, seed=0))
        gate.wait()
        second = engine.queue.submit(GenerationSpec(n=1, seed=1))
        gate.let(1)
        until(lambda: second.status is GenerationStatus.RUNNING)
        assert first.status is GenerationStatus.RUNNING
        assert first.images[0].position < GREY.pixels
        gate.open()
        assert_right(first)
        assert_right(second)
    # The first step draws one image, the second step draws both.
    assert [len(slots) for slots, _ in decoder.steps[:2]] == [1, 2]


@pytest.mark.parametrize(
    ("slots", "images", "admitted"),
    [
        (200, 200, [64, 64, 64, 8]),
        (1024, 300, [128, 128, 44]),
        (4096, 700, [320, 320, 60]),
    ],
)
def test_many_images_are_admitted_over_several_steps(
    slots: int, images: int, admitted: list[int]
) -> None:
    decoder = FakeDecoder(GREY, slots)
    seen: list[tuple[str, int]] = []
    clock = Clock()

    def draw(slots: list[int]) -> None:
        seen.append(("step", len(slots)))
        clock.now += STEP_SECONDS  # so long that a step has one pixel

    decoder.before_load = lambda slots: seen.append(("load", len(slots)))
    decoder.before_step = draw
    with opened(decoder, clock=clock) as engine:
        generation = engine.queue.submit(GenerationSpec(n=images, seed=0))
        engine.start()
        with engine.queue.reading(generation):
            assert_right(generation)
    expected = []
    for part in range(len(admitted)):
        expected += [("load", admitted[part]), ("step", sum(admitted[: part + 1]))]
    assert seen[: len(expected)] == expected


@pytest.mark.parametrize(("slots_each", "at_once"), [(1, 5), (2, 2)], ids=["plain", "guided"])
def test_prefills_are_spread_over_several_steps(slots_each: int, at_once: int) -> None:
    """One prefill takes 2/11 of the longest step, and twice as long with a twin."""
    decoder, clock = FakeDecoder(GREY, 64), Clock()
    loads: list[int] = []
    steps_before: list[int] = []

    def load(slots: list[int]) -> None:
        loads.append(len(slots))
        steps_before.append(len(decoder.steps))
        clock.now += len(slots) * slots_each * MAX_STEP_SECONDS / 5.5

    decoder.before_load = load
    known = np.arange(GREY.pixels) < 20
    spec = completion(GREY, 0, known, n=10)
    if slots_each == 2:
        spec = replace(spec, sampling=SamplingParams(label=1, guidance=2.0))
    with opened(decoder, clock=clock) as engine:
        generation = engine.queue.submit(spec)
        engine.start()
        with engine.queue.reading(generation):
            finished(generation)
            assert generation.error is None
    assert loads[0] == 1  # the first prefill measures the rate
    assert set(loads[1:-1]) == {at_once}
    assert sum(loads) == 10
    assert all(later > earlier for earlier, later in itertools.pairwise(steps_before))


@pytest.mark.parametrize("spare", [0, 64])
@pytest.mark.parametrize("prefill_budget", [19, 20])
def test_an_image_without_known_pixels_is_admitted_beyond_the_prefill_budget(
    prefill_budget: int, spare: int
) -> None:
    queue = Queue("it", GREY, QueueLimits(), Clock())
    known = np.arange(GREY.pixels) < 20
    for seed in range(4):
        spec = GenerationSpec(n=1, seed=seed) if seed % 2 else completion(GREY, seed, known)
        queue.submit(spec, caller=str(seed))
    for seeds in ([0, 1], [2, 3]):  # the images behind keep their positions
        taken = queue.admit(
            AdmissionLimits(
                free=64 - spare, spare=spare, largest_demand=4, prefill_pixels=prefill_budget
            )
        )
        assert [one.image.seed for one in taken] == seeds


def test_a_large_request_prefills_only_in_its_turn() -> None:
    queue = Queue("it", GREY, QueueLimits(), Clock())
    known = np.arange(GREY.pixels) < 20
    queue.submit(completion(GREY, 0, known, n=40), caller="large")
    queue.submit(completion(GREY, 100, known), caller="small")
    assert [
        one.image.seed for one in queue.admit(replace(FOUR_FREE, spare=1, prefill_large=False))
    ] == [100]
    assert [
        one.image.seed for one in queue.admit(replace(FOUR_FREE, spare=1, prefill_large=True))
    ] == [0, 1, 2, 3]


def test_a_small_request_prefills_only_in_its_turn() -> None:
    queue = Queue("it", GREY, QueueLimits(), Clock())
    queue.submit(completion(GREY, 0, np.arange(GREY.pixels) < 20), caller="knows")
    queue.submit(GenerationSpec(n=1, seed=100), caller="knows nothing")
    assert queue.admit(replace(FOUR_FREE, spare=0, prefill_small=False)) == []
    (taken,) = queue.admit(replace(FOUR_FREE, prefill_small=False))
    assert (taken.image.seed, taken.spare) == (100, True)
    (taken,) = queue.admit(replace(FOUR_FREE, free=0))
    assert taken.image.seed == 0


def test_repeated_completions_do_not_starve_another_small_request() -> None:
    """The completions are entirely known, and each prefill takes longer than a step."""
    decoder, clock = FakeDecoder(WIDE, 66), Clock()
    spec = completion(WIDE, 2000, np.ones(WIDE.pixels, np.bool_))
    small: list[Generation] = []
    prefilled: list[bool] = []  # per prefill: whether the small request waits for its first pixel

    def submit_again() -> None:
        if len(prefilled) < 40:
            engine.queue.submit(spec, caller="again", detached=True)

    def load(slots: list[int]) -> None:
        if 2000 in seeds_in(slots, engine):
            clock.now += 8 * STEP_SECONDS
            prefilled.append(bool(small) and small[0].images[0].position == 0)
            submit_again()
        if len(prefilled) == 20:
            small.append(engine.queue.submit(GenerationSpec(n=1, seed=1000), caller="small"))

    def draw(slots: list[int]) -> None:
        clock.now += len(slots) * STEP_SECONDS / 16
        if len(decoder.steps) == 5:
            submit_again()

    decoder.before_load, decoder.before_step = load, draw
    with opened(decoder, clock=clock, spare=2) as engine:
        large = engine.queue.submit(GenerationSpec(n=4000, seed=0), caller="large", detached=True)
        engine.start()
        until(lambda: small)
        with engine.queue.reading(small[0]):
            assert_right(small[0])
        until(lambda: len(prefilled) == 40)
        engine.queue.cancel(large)
        finished(large)
    assert sum(prefilled) <= 1


def test_a_request_that_arrives_as_all_others_end_prefills() -> None:
    """The small requests would have been next, and this one is not small."""
    decoder = FakeDecoder(GREY, 6)
    gate = Gate(decoder)
    with running(decoder, clock=Clock(), spare=2) as engine:
        others = [engine.queue.submit(GenerationSpec(n=n, seed=n)) for n in (40, 1)]
        gate.turn(3)
        late = engine.queue.submit(completion(GREY, 0, np.arange(GREY.pixels) < 20, n=11))
        for one in others:
            engine.queue.cancel(one)
        gate.open()
        assert_right(late)


def test_an_image_with_more_slots_than_the_limit_is_admitted_alone() -> None:
    """Two images with 64 particles and twins need 128 slots each, but the limit is 64."""
    decoder = FakeDecoder(GREY, 256)
    in_use: list[tuple[int, int]] = []
    with opened(decoder, clock=Clock()) as engine:
        decoder.before_load = lambda slots: in_use.append((engine.running, engine.slots_in_use))
        specs = [
            GenerationSpec(n=1, seed=0),
            GenerationSpec(
                n=2, seed=1, sampling=SamplingParams(label=1, guidance=2.0, particles=64)
            ),
        ]
        generations = [engine.queue.submit(spec) for spec in specs]
        generations.append(engine.queue.submit(GenerationSpec(n=1, seed=3)))
        engine.start()
        for generation in generations:
            with engine.queue.reading(generation):
                finished(generation)
                assert generation.error is None
    assert in_use[:3] == [(1, 1), (2, 129), (3, 130)]


@pytest.mark.parametrize(
    ("left", "waiting", "steps"),
    [
        (6, 1, [1, 6, 8]),  # stops where the first slot becomes free
        (2, 1, [1, 4]),  # but not before half of the step
        (6, 0, [1, 8]),  # draws a whole row if no image waits
    ],
)
def test_steps_are_short_while_images_wait(left: int, waiting: int, steps: list[int]) -> None:
    decoder = FakeDecoder(WIDE, 2)
    known = np.arange(WIDE.pixels) < WIDE.pixels - 1 - left
    # The clock stands still, so the decoder seems so fast that only these rules limit a step.
    with opened(decoder, clock=Clock()) as engine:
        specs = [
            completion(WIDE, 1, known),
            *(GenerationSpec(n=1, seed=s) for s in range(1 + waiting)),
        ]
        generations = [engine.queue.submit(spec) for spec in specs]
        engine.start()
        for generation in generations:
            with engine.queue.reading(generation):
                assert_right(generation)
    assert [n for _, n in decoder.steps[: len(steps)]] == steps


@pytest.mark.parametrize(("images", "steps"), [(64, [1, 8, 8]), (65, [1, WIDE.pixels])])
def test_few_images_are_drawn_row_by_row_and_many_in_long_steps(
    images: int, steps: list[int]
) -> None:
    decoder = FakeDecoder(WIDE, 1024)  # of which 128 are admitted at once
    with opened(decoder, clock=Clock()) as engine:
        generation = engine.queue.submit(GenerationSpec(n=images, seed=0))
        engine.start()
        with engine.queue.reading(generation):
            assert_right(generation)
    assert [n for _, n in decoder.steps[: len(steps)]] == steps


@pytest.mark.parametrize(
    ("before", "change", "pixels"),
    [(10, 10, 7), (5, 15, 3), (10, 0, 15), (20, -10, 15)],
    ids=["twice", "four times", "as many", "half"],
)
def test_a_step_is_shorter_after_many_images_join(before: int, change: int, pixels: int) -> None:
    """A pixel takes 1 ms, so 15 pixels fit into a step; fewer if more images join."""
    decoder = FakeDecoder(replace(GREY, height=40, width=40), 20)
    clock = Clock()
    with opened(decoder, clock=clock) as engine:
        staying = engine.queue.submit(GenerationSpec(n=before + min(change, 0), seed=0))
        leaving = engine.queue.submit(GenerationSpec(n=-change, seed=0)) if change < 0 else None

        def draw(slots: list[int]) -> None:
            _, n = decoder.steps[-1]
            clock.now += n / 1024  # a power of two, so that the sums are exact
            if len(decoder.steps) == 3:
                if change > 0:
                    engine.queue.submit(GenerationSpec(n=change, seed=50))
                if leaving is not None:
                    engine.queue.cancel(leaving)

        decoder.before_step = draw
        with engine.queue.reading(staying):
            engine.start()
            until(lambda: len(decoder.steps) >= 5)
            engine.queue.cancel(staying)
    assert [(len(slots), n) for slots, n in decoder.steps[:5]] == [
        (before, 1), (before, 15), (before, 15), (before + change, pixels), (before + change, 15),
    ]  # fmt: skip
