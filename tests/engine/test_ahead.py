"""Of many images on a device the next step is launched before the last has landed."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from scanline.model.decoders.contract import FEW_SLOTS, Inputs
from scanline.model.particles import Particles
from scanline.service.generation import FinishReason, Spec, Status
from scanline.service.queue import Limits, Queue
from scanline.service.scheduling.turns import HOST_ROOM, LONGEST_SECONDS, STEP_SECONDS, Pace
from scanline.service.steps import Steps
from tests.clocks import Clock
from tests.engine.fixtures import Gate, Heard, assert_right, completion, finished, opened, running
from tests.service_fixtures import GREY, FakeDecoder, LateDecoder

MANY = FEW_SLOTS + 6


def flights(decoder: LateDecoder) -> list[int]:
    """Keep how many launches are in flight, one to land among them, whenever one is to land."""
    seen: list[int] = []
    decoder.before_step = lambda slots: seen.append(1 + len(decoder.launched))
    return seen


@pytest.mark.parametrize(
    ("images", "most"), [(1, LateDecoder.flights), (MANY, LateDecoder.flights)], ids=["one", "many"]
)
def test_as_many_steps_are_in_flight_as_the_decoder_is_worth(images: int, most: int) -> None:
    decoder = LateDecoder(GREY, MANY)
    seen = flights(decoder)
    with opened(decoder) as engine:
        generation = engine.queue.submit(Spec(n=images, seed=0))
        with engine.queue.reading(generation):
            engine.start()
            assert_right(generation)
    assert max(seen) == most
    assert len(seen) == len(decoder.steps)  # each was waited for


def test_images_come_and_go_between_steps_in_flight() -> None:
    """Three times as many images as slots, some of them begun by their senders."""
    decoder = LateDecoder(GREY, MANY)
    seen = flights(decoder)
    known = np.arange(GREY.pixels) < 17
    with opened(decoder) as engine:
        generations = [
            engine.queue.submit(Spec(n=MANY, seed=1)),
            engine.queue.submit(completion(GREY, 2, known, n=MANY)),
            engine.queue.submit(Spec(n=MANY, seed=3, label=1)),
        ]
        engine.start()
        for generation in generations:
            with engine.queue.reading(generation):
                assert_right(generation)
    assert max(seen) == LateDecoder.flights


def test_known_pixels_are_passed_over_beside_those_who_draw() -> None:
    """On a device few images cost what many do: so they have no steps of their own for it."""
    decoder = LateDecoder(GREY, MANY)
    gate = Gate(decoder)
    with running(decoder, clock=Clock()) as engine:
        drawing = engine.queue.submit(Spec(n=1, seed=0))
        gate.wait()
        known = np.arange(GREY.pixels) < 17
        other = engine.queue.submit(completion(GREY, 1, known))
        gate.turn(2)
        assert other.status is Status.RUNNING
        assert other.images[0].position < 17
        assert other.drawn == 0
        assert other.first_pixel is None
        gate.open()
        for generation in (drawing, other):
            with engine.queue.reading(generation):
                assert_right(generation)
        assert other.first_pixel is not None
    assert {len(slots) for slots, _ in decoder.steps} == {1, 2}


def test_an_image_that_leaves_has_its_steps_in_flight_forgotten() -> None:
    decoder = LateDecoder(GREY, MANY)
    gate, ticks = Gate(decoder), itertools.count()
    # Time goes on by more than a step's whenever it is asked for: so each step is of one pixel.
    with running(decoder, clock=lambda: next(ticks) * 1.1 * STEP_SECONDS) as engine:
        leaving = engine.queue.submit(Spec(n=MANY, seed=0))
        gate.wait()
        gate.turn(3)
        assert decoder.launched  # behind the one that is held
        engine.queue.cancel(leaving)
        other = engine.queue.submit(Spec(n=MANY, seed=1))
        gate.open()
        with engine.queue.reading(other):
            assert_right(other)
        finished(leaving)
        assert {image.finish_reason for image in leaving.images} == {FinishReason.CANCELLED}


def test_nothing_that_failed_is_waited_for() -> None:
    class Failing(LateDecoder):
        def land(self, leave: int = 0) -> None:
            super().land(leave)
            if len(self.steps) == 3:
                raise RuntimeError("the device is gone")

    decoder = Failing(GREY, MANY)
    with running(decoder) as engine:
        failed = engine.queue.submit(Spec(n=MANY, seed=0))
        with engine.queue.reading(failed):
            finished(failed)
        assert {image.status for image in failed.images} == {Status.FINISHED}
        assert failed.error is not None
        other = engine.queue.submit(Spec(n=MANY, seed=1))
        with engine.queue.reading(other):
            assert_right(other)


def test_a_decoder_that_draws_at_once_lands_each_step() -> None:
    decoder = FakeDecoder(GREY, MANY)
    left: list[int] = []

    def land(leave: int = 0) -> None:
        left.append(leave)

    decoder.land = land  # type: ignore[method-assign]
    with opened(decoder) as engine:
        generation = engine.queue.submit(Spec(n=MANY, seed=0))
        with engine.queue.reading(generation):
            engine.start()
            assert_right(generation)
    assert set(left) == {0}


def test_a_step_on_a_device_lasts_as_long_as_the_hosts_work_beside_it() -> None:
    pace = Pace()
    pace.measure(0.010, 10, 1000, host=0.004)
    assert pace.room(1000) == STEP_SECONDS / 0.001
    pace.measure(0.010, 10, 1000, host=0.020)
    assert pace.room(1000) == pytest.approx(0.020 * HOST_ROOM / 0.001, abs=1)
    pace.measure(0.010, 10, 1000, host=1.0)
    assert pace.room(1000) == pytest.approx(LONGEST_SECONDS / 0.001, abs=1)


def test_a_last_step_that_is_short_is_not_taken_for_a_quick_one() -> None:
    """It draws what is left of what was asked for; the next one would last many times as long."""
    decoder, clock = FakeDecoder(GREY, 2), Clock()
    steps = Steps(decoder, Queue("fake", GREY, Limits(), clock), None, clock)
    steps.begin([0], Inputs.blank(GREY, 1), [False])
    slots = np.zeros(1, np.int32)
    for asked, drawn in ((29, 29), (29, 1)):

        def move(_: list[int], drawn: int = drawn) -> None:
            clock.now += 0.001 * drawn

        decoder.before_step = move
        steps.launch([(slots, asked)], light=False)
        steps.land(0)
        assert steps.turns.paces[False].room(1) == pytest.approx(STEP_SECONDS / 0.001, abs=1)


def test_particles_are_weighed_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, flying = LateDecoder(GREY, MANY), list[int]()
    weigh = Particles.weigh

    def watched(particles: Particles, *arguments: Any) -> None:
        flying.append(len(decoder.launched))
        weigh(particles, *arguments)

    monkeypatch.setattr(Particles, "weigh", watched)
    spec = replace(completion(GREY, 0, np.arange(GREY.pixels) % 7 == 6, n=MANY // 5), particles=5)
    with opened(decoder) as engine:
        generation = engine.queue.submit(spec)
        with engine.queue.reading(generation):
            engine.start()
            finished(generation)
    assert max(len(slots) for slots, _ in decoder.steps) > FEW_SLOTS
    assert set(flying) == {0}


def test_particles_of_every_image_stop_where_they_are_weighed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoder, weigh = FakeDecoder(GREY, 2 * MANY), Particles.weigh
    at = defaultdict[Particles, set[int]](set)

    def watched(particles: Particles, *arguments: Any) -> None:
        at[particles].add(int(decoder.positions[particles.slots[0]]))
        weigh(particles, *arguments)

    monkeypatch.setattr(Particles, "weigh", watched)
    with opened(decoder) as engine:
        generations = []
        for apart in (7, 6, 8):
            known = np.arange(GREY.pixels) % apart == apart - 1
            spec = replace(completion(GREY, 0, known, n=MANY // 5), particles=5)
            generations.append(engine.queue.submit(spec))
        engine.start()
        for generation in generations:
            with engine.queue.reading(generation):
                finished(generation)
    assert len(at) > 3
    for particles, positions in at.items():
        assert set(particles._stops) - {GREY.pixels} <= positions


def test_other_images_do_not_stop_where_particles_are_weighed() -> None:
    decoder = FakeDecoder(GREY, 3)
    known = np.arange(GREY.pixels) % 3 == 2
    with opened(decoder, clock=Clock()) as engine:
        specs = [Spec(n=1, seed=0), replace(completion(GREY, 0, known), particles=2)]
        generations = [engine.queue.submit(spec) for spec in specs]
        engine.start()
        for generation in generations:
            with engine.queue.reading(generation):
                finished(generation)
    # After the first, by which the time of a pixel is learned, row by row, and from stop to stop.
    asked = {
        len(slots): [n for some, n in decoder.steps if len(some) == len(slots)]
        for slots, _ in decoder.steps
    }
    assert asked[1] == [1] + [GREY.width] * 6
    assert asked[2] == [1, 2] + [3] * 9


def lasting(clock: Clock, seconds: float) -> Callable[[list[int]], None]:
    """Give what has each step take so long."""

    def pass_time(slots: list[int]) -> None:
        clock.now += seconds

    return pass_time


def test_a_step_behind_another_lasts_from_where_that_landed() -> None:
    """Two are in flight: each takes a second of the device's, one after the other."""
    clock, heard, decoder = Clock(), Heard(), LateDecoder(GREY, MANY)
    slots = np.arange(MANY, dtype=np.int32)
    decoder.begin(slots, Inputs.blank(GREY, MANY))
    steps = Steps(decoder, Queue("it", GREY, Limits(), clock), heard, clock)
    decoder.before_step = lasting(clock, 1)
    for _ in range(2):
        steps.launch([(slots, 1)], light=False)
    steps.land(1)
    steps.land(0)
    assert [seconds for seconds, _ in heard.steps] == [1, 1]


def test_a_step_at_once_lasts_as_long_as_the_decoder_took_whatever_the_host_did_beside_it() -> None:
    clock, heard, decoder = Clock(), Heard(), FakeDecoder(GREY, 1)
    steps = Steps(decoder, Queue("it", GREY, Limits(), clock), heard, clock)
    steps.begin([0], Inputs.blank(GREY, 1), [False])
    decoder.before_step = lasting(clock, 1)
    steps.launch([(np.zeros(1, np.int32), 1)], light=False)
    clock.now += 5
    steps.land(0)
    assert [seconds for seconds, _ in heard.steps] == [1]


def test_what_the_host_does_beside_a_step_on_a_device_makes_the_next_longer() -> None:
    clock, decoder = Clock(), LateDecoder(GREY, 1)
    steps = Steps(decoder, Queue("it", GREY, Limits(), clock), None, clock)
    steps.begin([0], Inputs.blank(GREY, 1), [False])
    decoder.before_step = lasting(clock, 0.001)
    steps.launch([(np.zeros(1, np.int32), 21)], light=False)
    clock.now += 0.020
    steps.land(0)
    room = steps.turns.paces[False].room(1)
    assert room == pytest.approx(0.020 * HOST_ROOM / 0.001, abs=1)


def test_a_step_of_two_calls_stays_in_flight_whole() -> None:
    clock, decoder = Clock(), LateDecoder(GREY, 2)
    steps = Steps(decoder, Queue("it", GREY, Limits(), clock), None, clock)
    steps.begin([0, 1], Inputs.blank(GREY, 2), [False, False])
    first, second = np.array([0], np.int32), np.array([1], np.int32)
    steps.launch([(first, 1)], light=False)
    steps.launch([(first, 1), (second, 1)], light=False)
    steps.land(1)
    assert decoder.positions.tolist() == [1, 0]
    steps.land(0)
    assert decoder.positions.tolist() == [2, 1]
