"""Steps in flight on a device: launched ahead, synchronized in order, and measured."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from scanline.model.decoders.base import SYNCHRONOUS_SLOTS, InputBatch
from scanline.model.particles import ParticleFilter
from scanline.model.sampling import SamplingParams
from scanline.service.engine.fair_queue import AdmissionLimits
from scanline.service.engine.generation import GenerationSpec, GenerationStatus
from scanline.service.engine.image import FinishReason, Status
from scanline.service.engine.pipeline import StepPipeline
from scanline.service.engine.queue import Queue
from scanline.service.engine.queue_limits import QueueLimits
from scanline.service.engine.time_share import (
    HOST_OVERLAP,
    MAX_STEP_SECONDS,
    STEP_SECONDS,
    StepBudget,
)
from tests.fake_clock import Clock
from tests.service.engine.fixtures import (
    Gate,
    RecordingObserver,
    assert_right,
    completion,
    finished,
    opened,
    running,
)
from tests.service.fake_decoders import FakeDecoder, LateDecoder, LatePrefillDecoder
from tests.service.fixtures import GREY

MANY = SYNCHRONOUS_SLOTS + 6


def create_pipeline(
    decoder: FakeDecoder, clock: Clock, observer: RecordingObserver | None = None
) -> StepPipeline:
    return StepPipeline(decoder, Queue("it", GREY, QueueLimits(), clock), observer, clock)


def record_in_flight(decoder: LateDecoder) -> list[int]:
    """Record the number of launches in flight at each synchronization, including that one."""
    seen: list[int] = []
    decoder.before_step = lambda slots: seen.append(1 + len(decoder.launched))
    return seen


@pytest.mark.parametrize("images", [1, MANY])
def test_the_decoder_decides_how_many_steps_are_in_flight(images: int) -> None:
    decoder = LateDecoder(GREY, MANY)
    seen = record_in_flight(decoder)
    with opened(decoder) as engine:
        generation = engine.queue.submit(GenerationSpec(n=images, seed=0))
        with engine.queue.reading(generation):
            engine.start()
            assert_right(generation)
    assert max(seen) == LateDecoder.max_in_flight
    assert len(seen) == len(decoder.steps)  # all steps were synchronized


def test_images_start_and_finish_between_steps_in_flight() -> None:
    """Three times as many images as slots, some of them with known pixels."""
    decoder = LateDecoder(GREY, MANY)
    seen = record_in_flight(decoder)
    known = np.arange(GREY.pixels) < 17
    with opened(decoder) as engine:
        generations = [
            engine.queue.submit(GenerationSpec(n=MANY, seed=1)),
            engine.queue.submit(completion(GREY, 2, known, n=MANY)),
            engine.queue.submit(GenerationSpec(n=MANY, seed=3, sampling=SamplingParams(label=1))),
        ]
        engine.start()
        for generation in generations:
            with engine.queue.reading(generation):
                assert_right(generation)
    assert max(seen) == LateDecoder.max_in_flight


def test_known_pixels_are_stepped_over_together_with_other_images() -> None:
    """A device prefills from a certain number of known pixels on only."""
    decoder = LateDecoder(GREY, MANY)
    gate = Gate(decoder)
    with running(decoder, clock=Clock()) as engine:
        drawing = engine.queue.submit(GenerationSpec(n=1, seed=0))
        gate.wait()
        known = np.arange(GREY.pixels) < 17
        other = engine.queue.submit(completion(GREY, 1, known))
        gate.turn(2)
        assert other.status is GenerationStatus.RUNNING
        assert other.images[0].position < 17
        assert other.drawn_pixels == 0
        assert other.first_pixel is None
        gate.open()
        for generation in (drawing, other):
            with engine.queue.reading(generation):
                assert_right(generation)
        assert other.first_pixel is not None
    assert {len(slots) for slots, _ in decoder.steps} == {1, 2}


def test_steps_in_flight_of_a_cancelled_image_are_ignored() -> None:
    decoder = LateDecoder(GREY, MANY)
    gate, ticks = Gate(decoder), itertools.count()
    # The clock advances by more than a step's target at each call, so each step draws one pixel.
    with running(decoder, clock=lambda: next(ticks) * 1.1 * STEP_SECONDS) as engine:
        leaving = engine.queue.submit(GenerationSpec(n=MANY, seed=0))
        gate.wait()
        gate.turn(3)
        assert decoder.launched  # a second step is in flight behind the blocked one
        engine.queue.cancel(leaving)
        other = engine.queue.submit(GenerationSpec(n=MANY, seed=1))
        gate.open()
        with engine.queue.reading(other):
            assert_right(other)
        finished(leaving)
        assert {image.finish_reason for image in leaving.images} == {FinishReason.CANCELLED}


def test_steps_are_discarded_after_a_failure() -> None:
    class Failing(LateDecoder):
        def synchronize(self, remaining: int = 0) -> None:
            super().synchronize(remaining)
            if len(self.steps) == 3:
                raise RuntimeError("the device is gone")

    decoder = Failing(GREY, MANY)
    with running(decoder) as engine:
        failed = engine.queue.submit(GenerationSpec(n=MANY, seed=0))
        with engine.queue.reading(failed):
            finished(failed)
        assert {image.status for image in failed.images} == {Status.FINISHED}
        assert failed.error is not None
        other = engine.queue.submit(GenerationSpec(n=MANY, seed=1))
        with engine.queue.reading(other):
            assert_right(other)


def test_a_synchronous_decoder_has_no_step_in_flight() -> None:
    decoder = FakeDecoder(GREY, MANY)
    remaining_values: list[int] = []

    def synchronize(remaining: int = 0) -> None:
        remaining_values.append(remaining)

    decoder.synchronize = synchronize  # type: ignore[method-assign]
    with opened(decoder) as engine:
        generation = engine.queue.submit(GenerationSpec(n=MANY, seed=0))
        with engine.queue.reading(generation):
            engine.start()
            assert_right(generation)
    assert set(remaining_values) == {0}


def test_a_step_budget_covers_the_hosts_work() -> None:
    budget = StepBudget()
    budget.update(0.010, 10, 1000, host_seconds=0.004)
    assert budget.max_pixels(1000) == STEP_SECONDS / 0.001
    budget.update(0.010, 10, 1000, host_seconds=0.020)
    assert budget.max_pixels(1000) == pytest.approx(0.020 * HOST_OVERLAP / 0.001, abs=1)
    budget.update(0.010, 10, 1000, host_seconds=1.0)
    assert budget.max_pixels(1000) == pytest.approx(MAX_STEP_SECONDS / 0.001, abs=1)


def test_a_short_last_step_does_not_count_as_a_fast_one() -> None:
    """It draws fewer pixels than requested; otherwise the next step would be much too long."""
    decoder, clock = FakeDecoder(GREY, 2), Clock()
    pipeline = create_pipeline(decoder, clock)
    pipeline.begin([0], InputBatch.empty(GREY, 1), [False])
    slots = np.zeros(1, np.int32)
    for asked, drawn in ((29, 29), (29, 1)):

        def move(_: list[int], drawn: int = drawn) -> None:
            clock.now += 0.001 * drawn

        decoder.before_step = move
        pipeline.launch([(slots, asked)], small=False)
        pipeline.synchronize(0)
        assert pipeline.time_share.budgets[False].max_pixels(1) == pytest.approx(
            STEP_SECONDS / 0.001, abs=1
        )


def test_particles_are_updated_with_nothing_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, flying = LateDecoder(GREY, MANY), list[int]()
    weigh = ParticleFilter.update

    def watched(particles: ParticleFilter, *arguments: Any) -> None:
        flying.append(len(decoder.launched))
        weigh(particles, *arguments)

    monkeypatch.setattr(ParticleFilter, "update", watched)
    spec = replace(
        completion(GREY, 0, np.arange(GREY.pixels) % 7 == 6, n=MANY // 5),
        sampling=SamplingParams(particles=5),
    )
    with opened(decoder) as engine:
        generation = engine.queue.submit(spec)
        with engine.queue.reading(generation):
            engine.start()
            finished(generation)
    assert max(len(slots) for slots, _ in decoder.steps) > SYNCHRONOUS_SLOTS
    assert set(flying) == {0}


def test_particles_stop_at_their_update_positions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoder, weigh = FakeDecoder(GREY, 2 * MANY), ParticleFilter.update
    at = defaultdict[ParticleFilter, set[int]](set)

    def watched(particles: ParticleFilter, *arguments: Any) -> None:
        at[particles].add(int(decoder.positions[particles.slots[0]]))
        weigh(particles, *arguments)

    monkeypatch.setattr(ParticleFilter, "update", watched)
    with opened(decoder) as engine:
        generations = []
        for apart in (7, 6, 8):
            known = np.arange(GREY.pixels) % apart == apart - 1
            spec = replace(
                completion(GREY, 0, known, n=MANY // 5), sampling=SamplingParams(particles=5)
            )
            generations.append(engine.queue.submit(spec))
        engine.start()
        for generation in generations:
            with engine.queue.reading(generation):
                finished(generation)
    assert len(at) > 3
    for particles, positions in at.items():
        assert set(particles._update_positions) - {GREY.pixels} <= positions


def test_other_images_do_not_stop_at_update_positions() -> None:
    decoder = FakeDecoder(GREY, 3)
    known = np.arange(GREY.pixels) % 3 == 2
    with opened(decoder, clock=Clock()) as engine:
        specs = [
            GenerationSpec(n=1, seed=0),
            replace(completion(GREY, 0, known), sampling=SamplingParams(particles=2)),
        ]
        generations = [engine.queue.submit(spec) for spec in specs]
        engine.start()
        for generation in generations:
            with engine.queue.reading(generation):
                finished(generation)
    # The first step measures the time per pixel. Then: row by row, and from update to update.
    asked = {
        len(slots): [n for some, n in decoder.steps if len(some) == len(slots)]
        for slots, _ in decoder.steps
    }
    assert asked[1] == [1] + [GREY.width] * 6
    assert asked[2] == [1, 2] + [3] * 9


def step_duration(clock: Clock, seconds: float) -> Callable[[list[int]], None]:
    """Return a hook that makes each step last ``seconds``."""

    def pass_time(slots: list[int]) -> None:
        clock.now += seconds

    return pass_time


def test_a_step_is_timed_from_the_end_of_the_previous_one() -> None:
    """Of two steps in flight, each takes one second of the device, one after the other."""
    clock, observer, decoder = Clock(), RecordingObserver(), LateDecoder(GREY, MANY)
    slots = np.arange(MANY, dtype=np.int32)
    decoder.begin(slots, InputBatch.empty(GREY, MANY))
    pipeline = create_pipeline(decoder, clock, observer)
    decoder.before_step = step_duration(clock, 1)
    for _ in range(2):
        pipeline.launch([(slots, 1)], small=False)
    pipeline.synchronize(1)
    pipeline.synchronize(0)
    assert [seconds for seconds, _ in observer.steps] == [1, 1]


def test_a_synchronous_step_is_timed_without_the_hosts_work() -> None:
    clock, observer, decoder = Clock(), RecordingObserver(), FakeDecoder(GREY, 1)
    pipeline = create_pipeline(decoder, clock, observer)
    pipeline.begin([0], InputBatch.empty(GREY, 1), [False])
    decoder.before_step = step_duration(clock, 1)
    pipeline.launch([(np.zeros(1, np.int32), 1)], small=False)
    clock.now += 5
    pipeline.synchronize(0)
    assert [seconds for seconds, _ in observer.steps] == [1]


def test_host_work_makes_the_next_step_longer() -> None:
    clock, decoder = Clock(), LateDecoder(GREY, 1)
    pipeline = create_pipeline(decoder, clock)
    pipeline.begin([0], InputBatch.empty(GREY, 1), [False])
    decoder.before_step = step_duration(clock, 0.001)
    pipeline.launch([(np.zeros(1, np.int32), 21)], small=False)
    clock.now += 0.020
    pipeline.synchronize(0)
    room = pipeline.time_share.budgets[False].max_pixels(1)
    assert room == pytest.approx(0.020 * HOST_OVERLAP / 0.001, abs=1)


def test_a_step_of_two_launches_stays_in_flight_as_a_whole() -> None:
    clock, decoder = Clock(), LateDecoder(GREY, 2)
    pipeline = create_pipeline(decoder, clock)
    pipeline.begin([0, 1], InputBatch.empty(GREY, 2), [False, False])
    first, second = np.array([0], np.int32), np.array([1], np.int32)
    pipeline.launch([(first, 1)], small=False)
    pipeline.launch([(first, 1), (second, 1)], small=False)
    pipeline.synchronize(1)
    assert decoder.positions.tolist() == [1, 0]
    pipeline.synchronize(0)
    assert decoder.positions.tolist() == [2, 1]


def known_inputs(lengths: list[int]) -> InputBatch:
    inputs = InputBatch.empty(GREY, len(lengths))
    inputs.known[:] = np.arange(GREY.pixels) < np.array(lengths)[:, None]
    return inputs


def test_images_with_and_without_prefill_start_between_steps_in_flight() -> None:
    decoder = LatePrefillDecoder(GREY, MANY)
    lengths = [0, 1, decoder.min_prefill, GREY.pixels - 1, GREY.pixels]
    with opened(decoder) as engine:
        generations = [
            engine.queue.submit(completion(GREY, seed, np.arange(GREY.pixels) < length, n=MANY))
            for seed, length in enumerate(lengths)
        ]
        engine.start()
        for generation in generations:
            with engine.queue.reading(generation):
                assert_right(generation)


def test_a_prefill_is_waited_for_once_a_step_is_queued_behind_it() -> None:
    """Until then the device computes it while the host goes on."""
    clock, decoder = Clock(), LatePrefillDecoder(GREY, 4)
    pipeline = create_pipeline(decoder, clock)
    first, all_slots = np.array([0], np.int32), np.arange(3, dtype=np.int32)
    pipeline.begin([0], known_inputs([0]), [False])
    pipeline.launch([(first, 1)], small=False)
    done: list[float] = []
    report = partial(done.append, 1.0)
    pipeline.begin([1, 2], known_inputs([5, 2]), [False, False], report)
    assert pipeline.in_flight == 1
    pipeline.synchronize(1)
    assert decoder.positions[:3].tolist() == [0, 0, 0]
    assert not done
    pipeline.launch([(all_slots, 1)], small=False)
    pipeline.synchronize(1)
    assert decoder.positions[:3].tolist() == [1, 5, 0]
    assert done == [1.0]
    assert pipeline.in_flight == 1
    pipeline.synchronize(0)
    assert decoder.positions[:3].tolist() == [2, 6, 1]
    pipeline.begin([0], known_inputs([2]), [False], report)  # too few pixels to prefill
    assert done == [1.0, 1.0]


def test_the_rate_of_prefills_is_measured_on_the_device() -> None:
    """Without the steps before and after it."""
    clock, decoder = Clock(), LatePrefillDecoder(GREY, 4)
    pipeline = create_pipeline(decoder, clock)
    assert pipeline.time_share.prefill_budget == 0
    pipeline.begin([0], known_inputs([0]), [False])
    pipeline.launch([(np.array([0], np.int32), 1)], small=False)
    pipeline.begin([1, 2, 3], known_inputs([6, 4, 2]), [True, False, False])
    pipeline.launch([(np.array([0], np.int32), 1)], small=False)
    durations = iter([0.5, 0.001, 0.7])  # on the device: a step, the prefill, a step

    def pass_time(slots: list[int]) -> None:
        clock.now += next(durations)

    decoder.before_step = pass_time
    pipeline.synchronize(0)
    assert pipeline.time_share.prefill_budget == pytest.approx(10 / 0.001 * MAX_STEP_SECONDS)


def test_only_prefilled_pixels_count_at_admission() -> None:
    spec = completion(GREY, 0, np.arange(GREY.pixels) < 5)
    for least in (6, math.inf):
        assert AdmissionLimits(free=9, min_prefill=least).pixels_to_prefill(spec) == 0
    assert AdmissionLimits(free=9, min_prefill=5).pixels_to_prefill(spec) == 5
    guided = replace(spec, sampling=SamplingParams(label=1, guidance=2.0))
    assert AdmissionLimits(free=9).pixels_to_prefill(guided) == 10
