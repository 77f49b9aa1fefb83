"""Spare slots, which are kept for small requests."""

from __future__ import annotations

from scanline.model.sampling import SamplingParams
from scanline.service.engine.fair_queue import AdmissionLimits
from scanline.service.engine.generation import Generation, GenerationSpec
from scanline.service.engine.image import FinishReason
from scanline.service.engine.queue import Queue
from scanline.service.engine.queue_limits import QueueLimits
from tests.fake_clock import Clock
from tests.service.engine.fixtures import Gate, finished, running
from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import GREY


def test_a_large_image_is_not_overtaken_forever_through_spare_slots() -> None:
    """An image waits for all four slots while small requests keep arriving; two slots are spare."""
    decoder = FakeDecoder(GREY, 6)
    gate, small = Gate(decoder), list[Generation]()
    with running(decoder, spare=2) as engine:
        filling = engine.queue.submit(GenerationSpec(n=40, seed=0))
        gate.wait()
        wide = engine.queue.submit(
            GenerationSpec(
                n=1, seed=50, sampling=SamplingParams(label=1, guidance=2.0, particles=2)
            )
        )
        decoder.before_step = lambda slots: small.append(
            engine.queue.submit(GenerationSpec(n=1, seed=100 + len(small)))
        )
        with engine.queue.reading(wide), engine.queue.reading(filling):
            finished(wide)
        decoder.before_step = lambda slots: None
        for one in (filling, *small):
            engine.queue.cancel(one)
    assert wide.images[0].finish_reason is FinishReason.LENGTH


def test_spare_slots_are_for_requests_that_need_few_slots_in_total() -> None:
    queue = Queue("it", GREY, QueueLimits(), Clock())
    # The image needs twelve slots.
    queue.submit(
        GenerationSpec(n=1, seed=0, sampling=SamplingParams(label=1, guidance=2.0, particles=6))
    )
    assert queue.admit(AdmissionLimits(free=0, spare=20, largest_demand=44)) == []
    (taken,) = queue.admit(AdmissionLimits(free=0, spare=20, largest_demand=48))
    assert taken.spare


def test_spare_slots_let_small_requests_overtake_a_waiting_large_one() -> None:
    queue = Queue("it", GREY, QueueLimits(), Clock())
    queue.submit(GenerationSpec(n=1, seed=0, sampling=SamplingParams(particles=8)), caller="large")
    queue.submit(GenerationSpec(n=1, seed=1), caller="small")
    (taken,) = queue.admit(AdmissionLimits(free=7, spare=8, largest_demand=1))
    assert taken.image.seed == 1
    assert taken.spare


def test_an_almost_finished_large_request_is_not_overtaken() -> None:
    queue = Queue("it", GREY, QueueLimits(), Clock())
    large = queue.submit(GenerationSpec(n=8, seed=0), caller="large")
    queue.submit(GenerationSpec(n=1, seed=100), caller="small")
    for left, passing in ((3, 0), (4, 1)):
        large.unfinished = left  # as if its other images had finished
        assert len(queue.admit(AdmissionLimits(free=0, spare=8, largest_demand=1))) == passing


def test_the_limit_per_admission_includes_spare_slots() -> None:
    queue = Queue("it", GREY, QueueLimits(), Clock())
    for seed in range(4):
        queue.submit(GenerationSpec(n=1, seed=seed))
    assert len(queue.admit(AdmissionLimits(free=0, spare=10, at_once=2, largest_demand=20))) == 2
    assert queue.waiting == 2


def test_an_image_with_several_slots_frees_spare_slots() -> None:
    decoder = FakeDecoder(GREY, 8)
    gate = Gate(decoder)
    with running(decoder, spare=2) as engine:
        large = engine.queue.submit(GenerationSpec(n=40, seed=0))
        gate.turn(2)
        for seed in (100, 101):
            small = engine.queue.submit(
                GenerationSpec(n=1, seed=seed, sampling=SamplingParams(label=1, guidance=2.0))
            )
            gate.turn(2)
            assert engine.slots_in_use == 8
            engine.queue.cancel(small)
            gate.turn(2)
            assert engine.slots_in_use == 6
        other = engine.queue.submit(GenerationSpec(n=40, seed=200))
        engine.queue.cancel(large)
        gate.turn(2)
        assert engine.slots_in_use == 6
        engine.queue.cancel(other)
        gate.open()
