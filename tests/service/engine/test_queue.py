"""Bounds of the queue, and estimated waiting times."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from scanline.model.sampling import SamplingParams
from scanline.service.engine.generation import Generation, GenerationSpec
from scanline.service.engine.queue import Queue
from scanline.service.engine.queue_limits import QueueLimits, RefusedError
from scanline.service.engine.queue_snapshot import MAX_AGE_SECONDS
from tests.fake_clock import Clock
from tests.service.engine.fixtures import Gate, assert_right, completion, running
from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import GREY, until


def test_a_full_queue_suggests_a_plausible_retry_time() -> None:
    decoder, clock = FakeDecoder(GREY, 1), Clock()
    gate = Gate(decoder)
    with running(decoder, clock=clock, max_waiting=10) as engine:
        with pytest.raises(RefusedError) as error:
            engine.queue.submit(GenerationSpec(n=11, seed=0))
        assert error.value.retry_after == 1  # no rate is measured yet
        first = engine.queue.submit(GenerationSpec(n=1, seed=0))
        gate.wait()
        second = engine.queue.submit(GenerationSpec(n=10, seed=0))
        assert engine.queue.waiting == 10
        with pytest.raises(RefusedError, match="try again in"):
            engine.queue.submit(GenerationSpec(n=1, seed=0), caller="another")
        assert engine.queue.waiting == 10
        clock.now += MAX_AGE_SECONDS
        # 30 pixels until the next image is admitted.
        for rate, seconds in (
            (10.0, 3),
            (1e9, 1),
            (1e-9, 120),
        ):
            engine.queue.rate = rate
            with pytest.raises(RefusedError) as error:
                engine.queue.check_capacity(1, "another")
            assert error.value.retry_after == seconds
        gate.open()
        for generation in (first, second):
            with engine.queue.reading(generation):
                assert_right(generation)
        engine.queue.check_capacity(10)


def test_wait_estimates_share_one_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoder, clock = FakeDecoder(GREY, 1), Clock()
    gate = Gate(decoder)
    with running(decoder, clock=clock) as engine:
        queue = engine.queue
        queue.submit(GenerationSpec(n=1, seed=0))
        gate.wait()
        waiting = [queue.submit(GenerationSpec(n=1, seed=0)) for _ in range(20)]
        queue.rate = 30.0  # one image per second
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


def test_places_are_reserved_for_new_callers_and_small_requests() -> None:
    decoder = FakeDecoder(GREY, 1)
    gate = Gate(decoder)
    with running(decoder, max_waiting=512) as engine:
        first = engine.queue.submit(GenerationSpec(n=1, seed=0))
        gate.wait()
        # Nothing waits, so it may fill the queue.
        large = engine.queue.submit(GenerationSpec(n=512, seed=0))
        with pytest.raises(RefusedError):
            engine.queue.check_capacity(1)
        engine.queue.cancel(large)
        gate.turn()
        until(lambda: engine.queue.waiting == 0)
        for _ in range(7):
            engine.queue.submit(GenerationSpec(n=60, seed=0))
        for n in (29, 60):  # 1/8 of 512 places is reserved for callers who have nothing waiting
            with pytest.raises(RefusedError):
                engine.queue.check_capacity(n)
        engine.queue.submit(GenerationSpec(n=28, seed=0))
        with pytest.raises(RefusedError):
            engine.queue.check_capacity(1)
        engine.queue.submit(GenerationSpec(n=48, seed=0), caller="large")
        with pytest.raises(RefusedError):  # and the last 16 places for small requests
            engine.queue.check_capacity(3, "another")
        for j in range(8):
            engine.queue.submit(GenerationSpec(n=2, seed=0), caller=str(j))
        with pytest.raises(RefusedError):
            engine.queue.check_capacity(1, "another")
        engine.queue.cancel(first)
        gate.open()


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({"n": 12}, {1: 2, 2: 3, 3: 5, 9: 14, 10: 15}),
        (
            {"n": 11, "sampling": SamplingParams(label=1, guidance=2.0)},
            {1: 2, 2: 5, 9: 26},
        ),
    ],
    ids=["two at a time", "guided, one at a time"],
)
def test_the_retry_time_depends_on_the_request_size(
    fields: dict[str, Any], seconds: dict[int, int]
) -> None:
    decoder = FakeDecoder(GREY, 2)
    gate = Gate(decoder)
    known = np.arange(GREY.pixels) < 9
    spec = dataclasses.replace(completion(GREY, 0, known), **fields)
    with running(decoder, clock=Clock(), max_waiting=12) as engine:
        generation = engine.queue.submit(spec)
        gate.wait()
        gate.turn()  # a step of one pixel; then the second image has prefilled its known pixels
        assert generation.images[0].position == 10
        # At this rate the running images take about two more seconds, and a new image takes three.
        engine.queue.rate = 2 * 30 / 3
        assert engine.queue.waiting == 10
        retry_after = {}
        full = engine.queue.limits.max_waiting - 10
        for n in seconds:
            with pytest.raises(RefusedError) as error:
                engine.queue.check_capacity(n + full, "another")
            retry_after[n] = error.value.retry_after
        gate.open()
        engine.queue.cancel(generation)
    assert retry_after == seconds


def test_waiting_images_share_one_array_of_initial_pixels() -> None:
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


def test_a_small_queue_accepts_a_single_image() -> None:
    decoder = FakeDecoder(GREY, 1)
    gate = Gate(decoder)
    with running(decoder, max_waiting=32) as engine:
        engine.queue.submit(GenerationSpec(n=1, seed=0))
        gate.wait()
        spec = GenerationSpec(n=2, seed=0)
        generations = [engine.queue.submit(spec, caller=str(j)) for j in range(15)]
        with pytest.raises(RefusedError):
            engine.queue.check_capacity(2, "another")
        engine.queue.check_capacity(1, "another")
        for one in generations:
            engine.queue.cancel(one)
        gate.open()


def test_unfinished_images_are_counted_per_caller() -> None:
    queue = Queue("it", GREY, QueueLimits(), Clock())
    three, one = (queue.submit(GenerationSpec(n=n, seed=0), caller="a") for n in (3, 1))
    queue.submit(GenerationSpec(n=5, seed=0), caller="b")
    assert queue.unfinished("a") == 4
    three.unfinished -= 1  # as if one of its images had finished
    assert queue.unfinished("a") == 3
    queue.withdraw(one)
    queue.finish(one)
    assert queue.unfinished("a") == 2
    assert queue.unfinished("c") == 0
