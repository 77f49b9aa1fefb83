"""Small requests beside large ones: they start at once and get half the time."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
import pytest

from scanline.model.decoders.factory import create_decoder
from scanline.model.sampling import SamplingParams
from scanline.service.engine.engine import Engine
from scanline.service.engine.fair_queue import Admission
from scanline.service.engine.generation import Generation, GenerationSpec, GenerationStatus
from scanline.service.engine.image import Status
from scanline.service.engine.queue import Queue
from scanline.service.engine.queue_limits import QueueLimits
from scanline.service.engine.slots import SlotAllocator
from scanline.service.engine.time_share import (
    MAX_STEP_SECONDS,
    SMALL_RATIO,
    STEP_SECONDS,
    TimeShare,
)
from tests.conftest import random_network
from tests.fake_clock import Clock
from tests.service.engine.fixtures import (
    EVERY_FAKE,
    Gate,
    assert_right,
    completion,
    drawn,
    finished,
    opened,
    running,
)
from tests.service.fake_decoders import FakeDecoder, LateDecoder
from tests.service.fixtures import GREY, until

LARGE = dataclasses.replace(GREY, height=16, width=16)


@EVERY_FAKE
def test_a_small_request_starts_at_once_beside_a_large_one(
    decoders: type[FakeDecoder],
) -> None:
    decoder = decoders(GREY, 6)
    gate = Gate(decoder)
    with running(decoder, spare=2) as engine:
        large = engine.queue.submit(GenerationSpec(n=40, seed=0))
        gate.turn(3)
        assert engine.slots_in_use == 4  # the other slots are spare ones, which it may not use
        assert (engine.slots, engine.total_slots) == (4, 6)
        before = [image.position for image in large.images]
        small = engine.queue.submit(GenerationSpec(n=1, seed=100))
        with engine.queue.reading(large), engine.queue.reading(small):
            gate.turn(2)
            assert small.status is GenerationStatus.RUNNING
            assert engine.slots_in_use == 5
            gate.open()
            assert_right(small)
            assert_right(large)
        assert sum(before) < 4 * GREY.pixels  # no image had to finish first


def test_a_small_request_gets_half_the_time() -> None:
    """A pixel takes 1/1024 s per slot; 64 images run beside one."""
    decoder, clock = FakeDecoder(LARGE, 66), Clock()
    alone, together = 0.0, 0.0
    with opened(decoder, clock=clock, spare=2) as engine:
        large = engine.queue.submit(GenerationSpec(n=200, seed=0))
        small: list[Generation] = []
        large_steps: list[int] = []

        def draw(slots: list[int]) -> None:
            nonlocal alone, together
            seconds = len(slots) * decoder.steps[-1][1] / 1024
            clock.now += seconds
            if len(decoder.steps) == 20:
                small.append(engine.queue.submit(GenerationSpec(n=1, seed=1000)))
            elif small and not small[0].finished and small[0].status is GenerationStatus.RUNNING:
                if len(slots) == 1:
                    alone += seconds
                else:
                    together += seconds
                    large_steps.append(len(slots))

        decoder.before_step = draw
        with engine.queue.reading(large):
            engine.start()
            until(lambda: small)
            with engine.queue.reading(small[0]):
                assert_right(small[0])
            engine.queue.cancel(large)
            finished(large)
    assert alone == LARGE.pixels / 1024  # its own steps take as long as if it were alone
    assert set(large_steps) == {64}
    step = 64 / 1024  # and the others get the same time, to within one of their steps
    assert abs(together - alone) <= step + STEP_SECONDS


def test_prefills_of_a_large_request_count_as_its_time() -> None:
    """Only the last pixels of its images are unknown, so new images keep arriving."""
    decoder, clock = FakeDecoder(LARGE, 66), Clock()
    known = np.arange(LARGE.pixels) < LARGE.pixels - 4
    seconds = {True: 0.0, False: 0.0}  # of the large request, and of the small one
    small: list[Generation] = []

    def large_slots(slots: list[int]) -> list[int]:
        return [slot for slot in slots if engine._slots.by_lead[slot].image.seed != 1000]

    def count(slots: list[int], each: float) -> None:
        large = large_slots(slots)
        clock.now += each * len(slots)
        if small and not small[0].finished:
            seconds[slots == large] += each * len(slots)

    def load(slots: list[int]) -> None:
        count(large_slots(slots), 0.01)  # the small request has no known pixels

    def draw(slots: list[int]) -> None:
        if len(decoder.steps) == 20:
            small.append(engine.queue.submit(GenerationSpec(n=1, seed=1000)))
        count(slots, decoder.steps[-1][1] / 1024)

    decoder.before_load, decoder.before_step = load, draw
    with opened(decoder, clock=clock, spare=2) as engine:
        large = engine.queue.submit(completion(LARGE, 0, known, n=150))
        with engine.queue.reading(large):
            engine.start()
            until(lambda: small)
            with engine.queue.reading(small[0]):
                assert_right(small[0])
            finished(large)  # it continues alone
            assert large.error is None
    assert seconds[False] == pytest.approx(alone := LARGE.pixels / 1024)
    assert seconds[True] <= alone + MAX_STEP_SECONDS + STEP_SECONDS


@pytest.mark.parametrize(("small", "large", "share"), [(6, 2, 3), (2, 6, 1)])
def test_small_requests_get_half_the_time_or_more_with_more_callers(
    small: int, large: int, share: int
) -> None:
    time_share = TimeShare()
    used = {True: 0, False: 0}
    for _ in range(1000):
        chosen = time_share.small_runs_next(small, large)
        used[chosen] += 1
        time_share.charge(chosen, 0.001)
    assert used[True] / used[False] == pytest.approx(share, rel=0.1)


def test_a_group_prefills_if_it_is_next_or_alone() -> None:
    time_share = TimeShare()
    may = []
    for small, large, took in ((1, 0, 0.0), (1, 1, 0.0), (1, 1, 1.0), (0, 1, 0.0)):
        time_share.small_runs_next(small, large)
        time_share.charge(small=True, seconds=took)
        may.append((time_share.may_prefill(True), time_share.may_prefill(False)))
    assert may == [(True, True), (True, False), (False, True), (True, True)]


@pytest.mark.parametrize(("decoders", "first"), [(FakeDecoder, 1), (LateDecoder, 4)])
def test_without_prefill_known_pixels_do_not_delay_admission(
    decoders: type[FakeDecoder], first: int
) -> None:
    """With prefill, the first image would be admitted alone, to measure the rate."""
    decoder, loaded = decoders(GREY, 8), list[int]()
    decoder.before_load = lambda slots: loaded.append(len(slots))
    known = np.arange(GREY.pixels) < 20
    with opened(decoder, clock=Clock()) as engine:
        generation = engine.queue.submit(completion(GREY, 0, known, n=4))
        with engine.queue.reading(generation):
            engine.start()
            assert_right(generation)
    assert loaded[0] == first


def test_an_absent_small_group_earns_no_credit() -> None:
    time_share = TimeShare()
    for _ in range(1000):
        assert not time_share.small_runs_next(0, 1)
        time_share.charge(small=False, seconds=0.01)
    order = []
    for _ in range(10):
        order.append(time_share.small_runs_next(1, 1))
        time_share.charge(order[-1], STEP_SECONDS)
    assert order == [True, True] + [False, True] * 4  # except for the lead of one step


def test_an_absent_large_group_earns_no_credit() -> None:
    time_share = TimeShare()
    for _ in range(1000):
        assert time_share.small_runs_next(1, 0)
        time_share.charge(small=True, seconds=0.01)
    order = []
    for _ in range(10):
        order.append(time_share.small_runs_next(1, 1))
        time_share.charge(order[-1], STEP_SECONDS)
    assert order.count(False) in (5, 6)


def test_equal_requests_share_each_step() -> None:
    decoder = FakeDecoder(GREY, 12)
    with opened(decoder, clock=Clock(), spare=4) as engine:
        generations = [
            engine.queue.submit(GenerationSpec(n=n, seed=seed)) for seed, n in ((0, 3), (50, 5))
        ]
        engine.start()
        for generation in generations:
            with engine.queue.reading(generation):
                assert_right(generation)
    assert {len(slots) for slots, _ in decoder.steps} == {8}


def test_an_almost_finished_large_request_does_not_become_small() -> None:
    """Otherwise its last images would get half the time, in inefficient steps of few slots."""
    decoder = FakeDecoder(GREY, 16)
    with opened(decoder, clock=Clock(), spare=4) as engine:
        generations = [
            engine.queue.submit(GenerationSpec(n=n, seed=seed)) for seed, n in ((0, 30), (50, 80))
        ]
        engine.start()
        for generation in generations:
            with engine.queue.reading(generation):
                assert_right(generation)
    assert {len(slots) for slots, _ in decoder.steps} == {12, (30 + 80) % 12}


Trouble = Literal["cancel small", "cancel large", "failing step", "closing"]


@pytest.mark.parametrize("trouble", ["cancel small", "cancel large", "failing step", "closing"])
@EVERY_FAKE
def test_all_slots_are_freed_whatever_happens_while_images_wait_in_their_slots(
    trouble: Trouble, decoders: type[FakeDecoder]
) -> None:
    decoder = decoders(GREY, 8)
    gate = Gate(decoder)
    with opened(decoder, spare=4) as engine:
        engine.start()
        large = engine.queue.submit(GenerationSpec(n=20, seed=0))
        gate.turn(2)
        small = engine.queue.submit(GenerationSpec(n=2, seed=100, sampling=SamplingParams(label=1)))
        gate.turn(2)
        assert engine.slots_in_use == 6
        match trouble:
            case "cancel small":
                engine.queue.cancel(small)
            case "cancel large":
                engine.queue.cancel(large)
            case "failing step":
                hold = decoder.before_step

                def fail(slots: list[int]) -> None:
                    decoder.before_step = hold
                    raise RuntimeError("a step that fails")

                decoder.before_step = fail
                gate.let(1)
            case "closing":
                engine.queue.close(0)
        gate.open()
        with engine.queue.reading(large), engine.queue.reading(small):
            finished(small)
            finished(large)
        assert engine.slots_in_use == 0
        if trouble == "cancel small":
            assert_right(large)
        if trouble == "closing":
            return
        again = [engine.queue.submit(GenerationSpec(n=n, seed=n)) for n in (9, 1, 1)]
        for generation in again:
            with engine.queue.reading(generation):
                assert_right(generation)


@pytest.mark.parametrize(("attention", "backend"), [("linear", "native"), ("softmax", "reference")])
def test_images_that_wait_in_their_slots_keep_their_bytes(
    attention: Literal["linear", "softmax"], backend: Literal["native", "reference"]
) -> None:
    """Large requests, one guided and one with particles, have four slots; four more are spare."""
    config = dataclasses.replace(GREY, height=3, width=4, attention=attention)
    network = random_network(config, 0).float()
    threads = 1 if backend == "native" else None
    known = np.arange(config.pixels) % 7 == 6
    canvas = np.full((config.pixels, 1), 99, np.uint8)
    specs = [
        GenerationSpec(n=9, seed=0),
        GenerationSpec(
            n=5, seed=100, canvas=canvas, known=known, sampling=SamplingParams(particles=2)
        ),
        GenerationSpec(n=4, seed=200, sampling=SamplingParams(label=1, guidance=2.0)),
        *(
            GenerationSpec(
                n=1, seed=300 + j, sampling=SamplingParams(label=j % 3, guidance=1.0 + j % 2)
            )
            for j in range(6)
        ),
    ]

    def draw(slots: int, spare: int, at_once: bool) -> list[list[bytes]]:
        engine = Engine(
            "it",
            create_decoder(network, slots, backend, threads),
            QueueLimits(grace=600),
            spare=spare,
        )
        engine.start()
        try:
            waiting: list[Generation] = []
            for spec in specs:
                waiting.append(generation := engine.queue.submit(spec))
                if at_once:
                    until(lambda one=generation: one.status is not Status.WAITING)  # type: ignore[misc]
                else:
                    finished(generation)
            return [[pixels.tobytes() for pixels in drawn(one)] for one in waiting]
        finally:
            engine.close(0)

    assert draw(8, 4, at_once=True) == draw(4, 0, at_once=False)


def test_a_request_with_a_quarter_of_the_slots_is_small() -> None:
    queue, runs = Queue("it", GREY, QueueLimits(), Clock()), SlotAllocator(GREY, 2, 0)
    small, large = (queue.submit(GenerationSpec(n=n, seed=0)) for n in (1, SMALL_RATIO))
    for generation in (small, large):
        runs.add(Admission(generation, generation.images[0], spare=False))
    assert runs.groups == ({small}, {large})


def test_many_small_requests_of_one_caller_share_half_the_time() -> None:
    decoder = FakeDecoder(LARGE, 66)
    clock = Clock()
    used = {True: 0.0, False: 0.0}  # seconds of the small requests' steps, and of the large one's

    def draw(slots: list[int]) -> None:
        took = decoder.steps[-1][1] / 1024
        clock.now += took
        if len(small) == 8 and not any(one.finished for one in small):
            used[len(slots) <= 8] += took

    small: list[Generation] = []
    decoder.before_step = draw
    with opened(decoder, clock=clock, spare=16) as engine:
        large = engine.queue.submit(GenerationSpec(n=200, seed=0), caller="large")
        small += [
            engine.queue.submit(GenerationSpec(n=1, seed=j), caller="small") for j in range(8)
        ]
        with engine.queue.reading(large):
            engine.start()
            for one in small:
                finished(one)
            engine.queue.cancel(large)
            finished(large)
    assert used[True] > 10 * STEP_SECONDS
    assert abs(used[True] - used[False]) <= 2 * STEP_SECONDS
