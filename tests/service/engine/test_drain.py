"""Closing an engine: new work is refused, and running generations have the drain time."""

from __future__ import annotations

import threading

import pytest

from scanline.service.engine.engine import Engine
from scanline.service.engine.generation import GenerationSpec, GenerationStatus
from scanline.service.engine.image import FinishReason
from scanline.service.engine.queue import Queue
from scanline.service.engine.queue_limits import ClosedError, QueueLimits
from tests.fake_clock import Clock
from tests.service.engine.fixtures import Gate, assert_empty, assert_right, finished, running
from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import GREY, until


def test_close_lets_generations_finish_and_refuses_new_ones() -> None:
    decoder = FakeDecoder(GREY, 1)
    gate = Gate(decoder)
    with running(decoder) as engine:
        generation = engine.queue.submit(GenerationSpec(n=3, seed=0))
        gate.wait()
        closing = threading.Thread(target=engine.close, args=(60.0,))
        with engine.queue.reading(generation):
            closing.start()
            until(lambda: not engine.alive)
            for refused in (engine.queue.submit, lambda r: engine.queue.check_capacity(r.n)):
                with pytest.raises(ClosedError, match="shutting down"):
                    refused(GenerationSpec(n=1, seed=0))
            gate.open()
            closing.join()
            assert generation.finished
            assert_right(generation)
        assert_empty(engine)
        engine.close(0)  # a second call is no error


def test_close_cuts_off_generations_after_the_drain_time() -> None:
    decoder, clock = FakeDecoder(GREY, 1), Clock()
    gate = Gate(decoder)
    with running(decoder, clock=clock) as engine:
        generation = engine.queue.submit(GenerationSpec(n=200, seed=0))
        gate.wait()
        with engine.queue.reading(generation):
            engine.queue.close(drain=10)
            clock.now += 9.9
            gate.turn(2)
            assert generation.status is GenerationStatus.RUNNING
            clock.now += 0.1
            gate.let(1)
            finished(generation)
        assert {i.finish_reason for i in generation.images} == {FinishReason.ERROR}
        assert generation.error is not None
        assert "shutting down" in generation.error


def test_cut_off_generations_are_logged_only_after_a_drain_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With ``drain=0`` the operator asked for an immediate end, so nothing is logged."""
    for drain in (0.0, 10.0):
        clock = Clock()
        queue = Queue("it", GREY, QueueLimits(), clock)
        queue.submit(GenerationSpec(n=3, seed=0))
        queue.close(drain)
        clock.now += drain
        queue.check_drain()
        assert ("stopped 3 unfinished images of 1 requests" in caplog.text) is (drain > 0)


def test_a_second_close_only_shortens_the_drain_time() -> None:
    decoder, clock = FakeDecoder(GREY, 1), Clock()
    gate = Gate(decoder)
    with running(decoder, clock=clock) as engine:
        generation = engine.queue.submit(GenerationSpec(n=200, seed=0))
        gate.wait()
        with engine.queue.reading(generation):
            for drain in (3600, 10, 3600):
                engine.queue.close(drain)
            gate.turn(1)
            assert generation.status is GenerationStatus.RUNNING
            clock.now += 10
            gate.let(1)
            finished(generation)
        assert generation.images[-1].finish_reason is FinishReason.ERROR


def test_an_engine_that_was_never_started_closes() -> None:
    Engine("fake", FakeDecoder(GREY, 1), QueueLimits()).close(0)
