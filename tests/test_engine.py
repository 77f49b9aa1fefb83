"""The engine, with a decoder whose pixels can be computed and with the real one."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from scanline.model.config import ModelConfig
from scanline.model.decoders.contract import Decoder
from scanline.model.decoders.reference import ReferenceDecoder
from scanline.service import engine as engine_module
from scanline.service.engine import Engine
from scanline.service.generation import FinishReason, Generation, Image, Place, Request, Status
from scanline.service.queue import ClosedError, Limits, QueueFullError
from tests.service_fixtures import (
    COLOUR,
    GREY,
    FakeDecoder,
    LateDecoder,
    fake_image,
    tiny_model,
    until,
)

BOTH = pytest.mark.parametrize("decoders", [FakeDecoder, LateDecoder])


class Gate:
    """Holds the engine's thread before steps: closed, then let through a step at a time or open."""

    def __init__(self, decoder: FakeDecoder) -> None:
        self._steps = threading.Semaphore(0)
        self._open = threading.Event()
        self.arrived = threading.Event()
        decoder.before_step = self._pass

    def _pass(self, slots: list[int]) -> None:
        self.arrived.set()
        while not self._open.is_set() and not self._steps.acquire(timeout=0.001):
            pass

    def let(self, steps: int) -> None:
        for _ in range(steps):
            self._steps.release()

    def open(self) -> None:
        self._open.set()


class Heard:
    """Counts what an engine tells its observer."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.reasons: Counter[FinishReason] = Counter()
        self.pixels = 0

    def admitted(self, waited: float) -> None:
        assert waited >= 0
        self.calls["admitted"] += 1

    def first_pixel(self, after: float) -> None:
        assert after >= 0
        self.calls["first_pixel"] += 1

    def stepped(self, seconds: float, pixels: int, slots: int) -> None:
        assert seconds >= 0
        assert slots > 0
        self.calls["stepped"] += 1
        self.pixels += pixels

    def finished(self, reason: FinishReason) -> None:
        self.reasons[reason] += 1


@contextlib.contextmanager
def running(decoder: Decoder, heard: Heard | None = None, **limits: float) -> Iterator[Engine]:
    """Run an engine, and check at the end that it gave everything back."""
    engine = Engine("fake", decoder, Limits(**limits), heard)  # type: ignore[arg-type]
    engine.start()
    try:
        yield engine
    finally:
        if isinstance(decoder, FakeDecoder):
            decoder.before_step = lambda slots: None
        engine.close(drain=30)
    assert not engine.alive
    assert_empty(engine)


def assert_empty(engine: Engine) -> None:
    assert engine.queue.waiting == 0
    assert engine.slots_in_use == 0
    assert engine._running == {}
    assert sorted(engine._free) == list(range(engine.decoder.max_slots))
    assert not engine.queue._order
    assert not engine.queue._live


def finished(generation: Generation) -> None:
    until(lambda: generation.finished, "the generation's end")


def drawn(generation: Generation) -> list[NDArray[np.uint8]]:
    finished(generation)
    return [image.read(0, generation.config.pixels) for image in generation.images]


def assert_right(generation: Generation) -> None:
    """Check every pixel of a generation that ``FakeDecoder`` finished."""
    for image, pixels in zip(generation.images, drawn(generation), strict=True):
        assert image.finish_reason is FinishReason.LENGTH
        assert image.position == generation.config.pixels
        assert image.bits is not None
        assert image.bits == generation.config.pixels
        expected = fake_image(generation.config, generation.request, image.index)
        np.testing.assert_array_equal(pixels, expected)


def completion(config: ModelConfig, seed: int, known: NDArray[np.bool_], n: int = 1) -> Request:
    values = np.random.default_rng(seed).integers(0, 256, (config.pixels, config.channels))
    return Request(n=n, seed=seed, canvas=values.astype(np.uint8), known=known)


@pytest.mark.parametrize("config", [GREY, COLOUR], ids=["grey", "colour"])
def test_one_generation_from_request_to_pixels(config: ModelConfig) -> None:
    heard = Heard()
    with running(FakeDecoder(config, 4), heard) as engine:
        generation = engine.queue.submit(Request(n=7, seed=2**64 - 3, temperature=0.5))
        with engine.queue.reading(generation):
            assert_right(generation)
        assert [i.seed for i in generation.images] == [2**64 - 3, 2**64 - 2, 2**64 - 1, 0, 1, 2, 3]
        assert generation.status is Status.FINISHED
        assert generation.error is None
        assert generation.drawn == 7 * config.pixels
        assert engine.queue.find(generation.id) is generation
        assert engine.queue.find("gen_none") is None
        times = [generation.created, generation.started, generation.first_pixel, generation.ended]
        assert times == sorted(t for t in times if t is not None)
    assert heard.calls["admitted"] == 1
    assert heard.calls["first_pixel"] == 1
    assert heard.reasons == {FinishReason.LENGTH: 7}
    assert heard.pixels == 7 * config.pixels


@BOTH
def test_the_same_seed_gives_the_same_bytes_among_fifty_others_coming_and_going(
    decoders: type[FakeDecoder],
) -> None:
    request = Request(n=3, seed=77, label=2)
    with running(decoders(GREY, 5)) as engine:
        alone = engine.queue.submit(request)
        with engine.queue.reading(alone):
            before = drawn(alone)
        stop, others, errors = threading.Event(), Counter[str](), list[BaseException]()

        def crowd(number: int) -> None:
            draw = random.Random(number)
            try:
                while not stop.is_set() or not others[str(number)]:
                    asked = Request(n=draw.randint(1, 3), seed=draw.getrandbits(64))
                    other = engine.queue.submit(asked)
                    with engine.queue.reading(other, grace=0):
                        if draw.random() < 0.3:
                            engine.queue.cancel(other)
                            finished(other)
                        else:
                            assert_right(other)
                    others[str(number)] += 1
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=crowd, args=(j,)) for j in range(50)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(5):
                crowded = engine.queue.submit(request)
                with engine.queue.reading(crowded):
                    for mine, theirs in zip(drawn(crowded), before, strict=True):
                        np.testing.assert_array_equal(mine, theirs)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert not errors
        assert len(others) == 50


def test_a_small_request_is_not_starved_and_admission_goes_round() -> None:
    decoder = FakeDecoder(GREY, 2)
    order: list[int] = []  # seeds, as they are admitted
    decoder.before_load = lambda slots: order.extend(
        engine._running[slot][1].seed for slot in slots
    )
    gate = Gate(decoder)
    with running(decoder) as engine:
        large = engine.queue.submit(Request(n=500, seed=0))
        gate.arrived.wait()
        small = engine.queue.submit(Request(n=1, seed=1000))
        middle = engine.queue.submit(Request(n=2, seed=2000))
        assert small.queue_position == 498
        assert middle.queue_position == 499
        with engine.queue.reading(large), engine.queue.reading(small), engine.queue.reading(middle):
            gate.open()
            assert_right(small)
            assert_right(middle)
            engine.queue.cancel(large)
            finished(large)
    assert order[:8] == [0, 1, 2, 1000, 2000, 3, 2001, 4]


def test_a_crowd_that_joins_does_not_make_one_long_step() -> None:
    decoder = FakeDecoder(dataclasses.replace(GREY, height=40, width=40), 20)
    engine = Engine("fake", decoder, Limits())  # not started: this thread takes its steps
    generation = engine.queue.submit(Request(n=20, seed=0))
    engine._admit()
    for measured, pixels in ((1, 1), (10, 7), (20, 15), (40, 15)):
        engine._pixel_seconds, engine._measured = engine_module.STEP_SECONDS / 15, measured
        engine._launch()
        assert decoder.steps[-1] == (list(range(20)), pixels)
    assert decoder.positions.tolist() == [38] * 20
    assert generation.status is Status.RUNNING


def test_slots_are_given_in_turn_between_requests() -> None:
    decoder = FakeDecoder(GREY, 1)
    order: list[int] = []
    decoder.before_load = lambda slots: order.append(int(engine._running[slots[0]][1].seed))
    gate = Gate(decoder)
    with running(decoder) as engine:
        first = engine.queue.submit(Request(n=3, seed=100))
        gate.arrived.wait()
        rest = [engine.queue.submit(Request(n=2, seed=200 + 100 * j)) for j in range(2)]
        gate.open()
        for generation in (first, *rest):
            with engine.queue.reading(generation):
                assert_right(generation)
    assert order == [100, 101, 200, 300, 102, 201, 301]


def test_an_image_is_admitted_between_any_two_steps() -> None:
    decoder = FakeDecoder(GREY, 2)
    gate = Gate(decoder)
    with running(decoder) as engine:
        first = engine.queue.submit(Request(n=1, seed=0))
        gate.arrived.wait()
        second = engine.queue.submit(Request(n=1, seed=1))
        gate.let(1)
        until(lambda: second.status is Status.RUNNING)
        assert first.status is Status.RUNNING
        assert first.images[0].position < GREY.pixels
        gate.open()
        assert_right(first)
        assert_right(second)
    # The first step was of one image, the second of both.
    assert [len(slots) for slots, _ in decoder.steps[:2]] == [1, 2]


def test_a_step_is_never_longer_than_a_row_nor_past_the_first_end_while_others_wait() -> None:
    decoder = FakeDecoder(GREY, 2)
    with running(decoder) as engine:
        known = np.arange(GREY.pixels) < 3
        generations = [engine.queue.submit(Request(n=3, seed=0)), engine.queue.submit(
            completion(GREY, 1, known, 3))]  # fmt: skip
        for generation in generations:
            with engine.queue.reading(generation):
                assert_right(generation)
    assert max(n for _, n in decoder.steps) <= GREY.width


def test_the_waiting_bound_refuses_with_a_sane_wait() -> None:
    decoder = FakeDecoder(GREY, 1)
    gate = Gate(decoder)
    with running(decoder, max_waiting=10) as engine:
        with pytest.raises(QueueFullError) as error:
            engine.queue.submit(Request(n=11, seed=0))
        assert error.value.retry_after == 1  # nothing measured yet
        first = engine.queue.submit(Request(n=1, seed=0))
        until(lambda: first.status is Status.RUNNING)
        second = engine.queue.submit(Request(n=10, seed=0))
        assert engine.queue.waiting == 10
        for refused in (engine.queue.submit, lambda r: engine.queue.check_room(r.n)):
            with pytest.raises(QueueFullError, match="try again in"):
                refused(Request(n=1, seed=0))
        assert engine.queue.waiting == 10
        engine.queue.rate = 100.0  # pixels a second: 11 images of 30 pixels take 3.3 s
        with pytest.raises(QueueFullError) as error:
            engine.queue.check_room(1)
        assert error.value.retry_after == 3
        engine.queue.rate = 1e-9
        with pytest.raises(QueueFullError) as error:
            engine.queue.check_room(1)
        assert error.value.retry_after == 120
        gate.open()
        for generation in (first, second):
            with engine.queue.reading(generation):
                assert_right(generation)
        engine.queue.check_room(10)


@BOTH
def test_cancelling_what_waits_and_what_runs_leaves_others_alone(
    decoders: type[FakeDecoder],
) -> None:
    heard = Heard()
    decoder = decoders(GREY, 2)
    gate = Gate(decoder)
    with running(decoder, heard) as engine:
        runs = engine.queue.submit(Request(n=3, seed=0))  # two run, one waits
        gate.arrived.wait()
        waits, other = (
            engine.queue.submit(Request(n=4, seed=10)),
            engine.queue.submit(Request(n=2, seed=20)),
        )
        gate.let(3)
        until(lambda: runs.images[0].position > 0)
        engine.queue.cancel(runs)
        engine.queue.cancel(waits)
        engine.queue.cancel(waits)
        with engine.queue.reading(other):
            gate.open()
            assert_right(other)
        for cancelled in (runs, waits):
            finished(cancelled)
            assert {i.finish_reason for i in cancelled.images} == {FinishReason.CANCELLED}
            assert cancelled.error is None
        # What was drawn stays readable, and is right.
        image = runs.images[0]
        assert 0 < image.position < GREY.pixels
        expected = fake_image(GREY, runs.request, 0)[: image.position]
        np.testing.assert_array_equal(image.read(0, image.position), expected)
        assert not image.read(image.position, GREY.pixels).any()
        assert image.bits is None
        engine.queue.cancel(runs)  # once more, when it is over
    assert heard.reasons == {FinishReason.CANCELLED: 7, FinishReason.LENGTH: 2}


@BOTH
def test_a_step_that_raises_ends_what_it_touched_and_nothing_else(
    decoders: type[FakeDecoder],
) -> None:
    heard = Heard()
    decoder = decoders(GREY, 2)
    gate = Gate(decoder)
    with running(decoder, heard) as engine:
        touched = engine.queue.submit(Request(n=3, seed=0))
        gate.arrived.wait()
        spared = engine.queue.submit(Request(n=2, seed=10))

        def fail(slots: list[int]) -> None:
            decoder.before_step = lambda slots: None
            raise RuntimeError("the step is broken")

        with engine.queue.reading(touched), engine.queue.reading(spared):
            decoder.before_step = fail
            gate.open()
            assert_right(spared)
            finished(touched)
        assert {i.finish_reason for i in touched.images} == {FinishReason.ERROR}
        assert touched.error is not None
        assert "send the request again" in touched.error
        assert spared.error is None
        after = engine.queue.submit(Request(n=5, seed=3))
        with engine.queue.reading(after):
            assert_right(after)
    assert heard.reasons == {FinishReason.ERROR: 3, FinishReason.LENGTH: 7}


@pytest.mark.parametrize("where", ["reset", "load", "prefill"])
def test_a_load_that_raises_ends_only_the_images_that_it_would_have_loaded(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = FakeDecoder(GREY, 3)
    gate = Gate(decoder)
    with running(decoder) as engine:
        runs = engine.queue.submit(Request(n=1, seed=0))
        gate.arrived.wait()

        def fail(*_: object) -> None:
            monkeypatch.undo()
            raise RuntimeError(f"{where} is broken")

        monkeypatch.setattr(decoder, where, fail)
        touched = engine.queue.submit(completion(GREY, 1, np.arange(GREY.pixels) < 8, n=4))
        with engine.queue.reading(runs), engine.queue.reading(touched):
            gate.open()
            finished(touched)
            assert {i.finish_reason for i in touched.images} == {FinishReason.ERROR}
            assert_right(runs)
        until(lambda: engine.slots_in_use == 0)
        assert_empty(engine)
        after = engine.queue.submit(completion(GREY, 1, np.arange(GREY.pixels) < 8, n=4))
        with engine.queue.reading(after):
            assert_right(after)


def test_failing_for_ever_ends_every_generation_and_the_engine_lives() -> None:
    decoder = FakeDecoder(GREY, 2)

    def fail(slots: list[int]) -> None:
        raise MemoryError

    decoder.before_step = fail
    with running(decoder) as engine:
        for seed in range(20):
            generation = engine.queue.submit(Request(n=3, seed=seed))
            with engine.queue.reading(generation):
                finished(generation)
            assert generation.error
        assert engine.alive


def test_closing_lets_what_there_is_finish_and_takes_no_more() -> None:
    decoder = FakeDecoder(GREY, 1)
    gate = Gate(decoder)
    engine = Engine("fake", decoder, Limits())
    engine.start()
    generation = engine.queue.submit(Request(n=3, seed=0))
    gate.arrived.wait()
    closing = threading.Thread(target=engine.close, args=(60.0,))
    with engine.queue.reading(generation):
        closing.start()
        until(lambda: not engine.alive)
        for refused in (engine.queue.submit, lambda r: engine.queue.check_room(r.n)):
            with pytest.raises(ClosedError, match="shutting down"):
                refused(Request(n=1, seed=0))
        gate.open()
        closing.join()
        assert generation.finished
        assert_right(generation)
    assert_empty(engine)
    engine.close(0)  # once more is no error


def test_closing_cuts_off_what_takes_longer_than_the_drain_time() -> None:
    decoder = FakeDecoder(GREY, 1)
    gate = Gate(decoder)
    engine = Engine("fake", decoder, Limits())
    engine.start()
    generation = engine.queue.submit(Request(n=200, seed=0))
    gate.arrived.wait()
    with engine.queue.reading(generation):
        closing = threading.Thread(target=engine.close, args=(0.0,))
        closing.start()
        until(lambda: not engine.alive)
        gate.open()
        closing.join()
    assert generation.finished
    assert {i.finish_reason for i in generation.images[1:]} == {FinishReason.ERROR}
    assert generation.error is not None
    assert "shutting down" in generation.error
    assert_empty(engine)


def test_closing_again_makes_the_time_shorter_never_longer() -> None:
    decoder = FakeDecoder(GREY, 1)
    gate = Gate(decoder)
    engine = Engine("fake", decoder, Limits())
    engine.start()
    generation = engine.queue.submit(Request(n=200, seed=0))
    gate.arrived.wait()
    with engine.queue.reading(generation):
        closing = [threading.Thread(target=engine.close, args=(s,)) for s in (3600, 0, 3600)]
        for thread in closing:
            thread.start()
        until(
            lambda: engine.queue._closing is not None and engine.queue._closing <= time.monotonic()
        )
        closing[-1].join(0.05)  # time for the last one to speak
        gate.open()
        for thread in closing:
            thread.join()
    assert generation.images[-1].finish_reason is FinishReason.ERROR


def test_an_engine_never_started_closes() -> None:
    Engine("fake", FakeDecoder(GREY, 1), Limits()).close(0)


def test_the_last_reader_to_leave_lets_a_generation_go_after_the_grace() -> None:
    decoder = FakeDecoder(GREY, 1)
    gate = Gate(decoder)
    with running(decoder, grace=0.05) as engine:
        generation = engine.queue.submit(Request(n=100, seed=0))
        gate.arrived.wait()
        with engine.queue.reading(generation):
            with engine.queue.reading(generation):
                pass
            assert generation.abandoned is None  # one reader is still there
            gate.let(2)
            until(lambda: generation.images[0].position > 0)
        assert generation.abandoned is not None
        with engine.queue.reading(generation):
            assert generation.abandoned is None  # back in time
        decoder.before_step = lambda slots: time.sleep(0.005)
        gate.open()
        finished(generation)
        assert generation.images[-1].finish_reason is FinishReason.CANCELLED


def test_without_grace_the_last_reader_takes_the_generation_along() -> None:
    decoder = FakeDecoder(GREY, 1)
    gate = Gate(decoder)
    with running(decoder, grace=1e6) as engine:
        generation = engine.queue.submit(Request(n=100, seed=0))
        gate.arrived.wait()
        with engine.queue.reading(generation, grace=0):
            pass
        gate.let(1)
        finished(generation)
        assert generation.images[0].finish_reason is FinishReason.CANCELLED
        assert engine.slots_in_use == 0


def test_no_grace_does_not_cancel_what_its_reader_has_not_reached_yet() -> None:
    decoder = FakeDecoder(GREY, 1)
    with running(decoder, grace=0.0) as engine:
        generation = engine.queue.submit(Request(n=20, seed=0))
        until(lambda: generation.images[3].status is Status.FINISHED)  # nobody has come so far
        with engine.queue.reading(generation):
            assert_right(generation)


def test_what_nobody_ever_reads_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scanline.service.queue.FIRST_READER_SECONDS", 0.02)
    decoder = FakeDecoder(GREY, 1)
    decoder.before_step = lambda slots: time.sleep(0.005)
    with running(decoder, grace=0.02) as engine:
        generation = engine.queue.submit(Request(n=4000, seed=0))
        finished(generation)
        assert generation.images[-1].finish_reason is FinishReason.CANCELLED


def test_finished_generations_are_kept_by_count() -> None:
    with running(FakeDecoder(GREY, 4), keep_finished=3) as engine:
        generations = [engine.queue.submit(Request(n=1, seed=seed)) for seed in range(8)]
        for generation in generations:
            with engine.queue.reading(generation):
                assert_right(generation)
        until(lambda: len(engine.queue._finished) == 3)
        kept = [g for g in generations if engine.queue.find(g.id) is not None]
        assert len(kept) == 3
    with running(FakeDecoder(GREY, 1), keep_finished=0) as engine:
        generation = engine.queue.submit(Request(n=1, seed=0))
        with engine.queue.reading(generation):
            assert_right(generation)
        until(lambda: engine.queue.find(generation.id) is None)


def test_finished_generations_are_kept_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(FakeDecoder(GREY, 4), keep_seconds=300.0) as engine:
        generation = engine.queue.submit(Request(n=1, seed=0))
        with engine.queue.reading(generation):
            assert_right(generation)
        assert engine.queue.find(generation.id) is generation
        assert generation.ended is not None
        generation.ended -= 301
        assert engine.queue.find(generation.id) is None
        assert not engine.queue._finished


@BOTH
def test_slots_come_back_after_thousands_of_random_arrivals_and_cancels(
    decoders: type[FakeDecoder],
) -> None:
    heard = Heard()
    decoder = decoders(dataclasses.replace(GREY, height=2, width=2), 7)
    failures = random.Random(5)

    def sometimes(slots: list[int]) -> None:
        if failures.random() < 0.01:
            raise RuntimeError("now and then")

    decoder.before_step = sometimes
    decoder.before_load = sometimes
    asked, lock = Counter[str](), threading.Lock()
    with running(decoder, heard, max_waiting=60, keep_finished=10, grace=0.0) as engine:

        def arrive(number: int) -> None:
            draw = random.Random(number)
            for _ in range(500):
                request = Request(n=draw.randint(1, 9), seed=draw.getrandbits(64))
                try:
                    generation = engine.queue.submit(request)
                except QueueFullError:
                    time.sleep(0.001)
                    continue
                with lock:
                    asked["images"] += request.n
                how = draw.random()
                with engine.queue.reading(generation):
                    if how < 0.5:
                        finished(generation)
                        if generation.error is None:
                            assert_right(generation)
                if how > 0.8:
                    engine.queue.cancel(generation)

        threads = [threading.Thread(target=arrive, args=(j,)) for j in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        until(lambda: not engine.queue._live)
        assert_empty(engine)
        assert len(engine.queue._finished) <= 10
        assert engine.alive
    assert asked["images"] > 1000
    assert sum(heard.reasons.values()) == asked["images"]
    assert set(heard.reasons) == set(FinishReason)


@BOTH
def test_reading_while_slots_are_reused_never_gives_another_images_pixels(
    decoders: type[FakeDecoder],
) -> None:
    decoder = decoders(GREY, 2)
    errors: list[str] = []
    done = threading.Event()
    with running(decoder, keep_finished=0) as engine:
        live: list[Generation] = []

        def hammer() -> None:
            while not done.is_set():
                for generation in live:
                    for image in generation.images:
                        stop = image.position
                        pixels = image.read(0, stop)
                        if not np.array_equal(pixels, expected[image.seed][:stop]):
                            errors.append(f"{image.seed} at {stop}: {pixels.ravel()}")

        requests = [Request(n=4, seed=10 * j) for j in range(60)]
        expected = {
            request.seed + j: fake_image(GREY, request, j) for request in requests for j in range(4)
        }
        threads = [threading.Thread(target=hammer) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for first in range(0, len(requests), 3):
                live[:] = [engine.queue.submit(r) for r in requests[first : first + 3]]
                for generation in live:
                    with engine.queue.reading(generation):
                        finished(generation)
        finally:
            done.set()
            for thread in threads:
                thread.join()
    assert not errors, errors[:3]


def test_an_image_that_ends_during_a_read_is_read_again() -> None:
    """The race itself, with the turn of events made sure by an array that ends the image."""
    row = np.full((4, 1), 7, np.uint8)

    class Row:
        def __getitem__(self, part: slice) -> NDArray[np.uint8]:
            image.finish(FinishReason.LENGTH, None)
            row[:] = 99  # the slot is another's now
            return row[part]

        def copy(self) -> NDArray[np.uint8]:
            return row.copy()

    position = np.full(1, 4, np.int32)
    image = Image(0, 0, Place(row, position))
    image.run(0, Place(cast("NDArray[np.uint8]", Row()), position))
    assert image.read(0, 4).ravel().tolist() == [7, 7, 7, 7]


def test_news_wakes_each_waiter_once_and_at_once_when_all_is_over() -> None:
    decoder = FakeDecoder(GREY, 1)
    gate = Gate(decoder)
    woken: Counter[str] = Counter()
    with running(decoder) as engine:
        generation = engine.queue.submit(Request(n=1, seed=0))
        gate.arrived.wait()
        generation.when_news(lambda: woken.update("a"))
        generation.when_news(lambda: woken.update("b"))
        assert not woken
        gate.let(2)
        until(lambda: woken["b"])
        until(lambda: generation.images[0].position > 0)
        gate.open()
        assert_right(generation)
        generation.when_news(lambda: woken.update("c"))
        assert woken == {"a": 1, "b": 1, "c": 1}


def test_news_between_reading_and_waiting_is_not_missed() -> None:
    generation = Generation("fake", GREY, Request(n=1, seed=0))
    woken: Counter[str] = Counter()
    seen = generation.changes
    generation.when_news(lambda: woken.update("a"), seen)
    assert not woken
    generation.wake()
    assert woken == {"a": 1}
    generation.when_news(lambda: woken.update("b"), seen)
    assert woken == {"a": 1, "b": 1}
    generation.when_news(lambda: woken.update("c"), generation.changes)
    assert woken == {"a": 1, "b": 1}


def test_finished_images_hold_only_their_own_pixels() -> None:
    """Memory: no finished image keeps the decoder's whole canvas alive."""
    decoder = FakeDecoder(GREY, 4)
    with running(decoder) as engine:
        generation = engine.queue.submit(Request(n=9, seed=0))
        with engine.queue.reading(generation):
            drawn(generation)
        for image in generation.images:
            for kept in image._place:
                assert kept.base is None
            assert image._place.pixels.nbytes == GREY.values
        assert not generation._waiters
        assert not generation._enders


# --- a real network -----------------------------------------------------------------------------

MASKS: dict[str, Callable[[int], NDArray[np.bool_]]] = {
    "first rows": lambda T: np.arange(T) < 11,
    "middle": lambda T: (np.arange(T) > 7) & (np.arange(T) < 20),
    "prefix and middle": lambda T: (np.arange(T) < 4) | (np.arange(T) % 3 == 1),
    "last only": lambda T: np.arange(T) == T - 1,
    "all but the last": lambda T: np.arange(T) < T - 1,
    "all": lambda T: np.ones(T, np.bool_),
}


@pytest.mark.parametrize("config", [GREY, COLOUR], ids=["grey", "colour"])
def test_a_real_network_draws_the_same_alone_and_in_a_crowd(config: ModelConfig) -> None:
    decoder = ReferenceDecoder(tiny_model(config), 6)
    request = Request(n=2, seed=41, label=1 if config.classes else -1)
    with running(decoder) as engine:
        alone = engine.queue.submit(request)
        with engine.queue.reading(alone):
            before = drawn(alone)
        first = [engine.queue.submit(Request(n=2, seed=s, temperature=0.3)) for s in range(6)]
        known = MASKS["first rows"](config.pixels)
        crowded = engine.queue.submit(request)
        later = [engine.queue.submit(completion(config, s, known)) for s in range(5)]
        engine.queue.cancel(first[2])
        with engine.queue.reading(crowded):
            after = drawn(crowded)
        for generation in (*first, *later):
            with engine.queue.reading(generation):
                drawn(generation)
    for mine, theirs in zip(after, before, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert not np.array_equal(before[0], before[1])
    bits = [[i.bits for i in g.images] for g in (alone, crowded)]
    for one, other in zip(*bits, strict=True):
        assert one is not None
        assert one == other


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("config", [GREY, COLOUR], ids=["grey", "colour"])
def test_a_completion_keeps_what_is_known_wherever_it_is(config: ModelConfig, mask: str) -> None:
    known = MASKS[mask](config.pixels)
    with running(ReferenceDecoder(tiny_model(config), 3)) as engine:
        generation = engine.queue.submit(completion(config, 3, known, n=4))
        with engine.queue.reading(generation):
            images = drawn(generation)
        canvas = generation.request.canvas
        assert canvas is not None
        for pixels in images:
            np.testing.assert_array_equal(pixels[known], canvas[known])
        if not known.all():
            assert len({pixels[~known].tobytes() for pixels in images}) > 1
        assert generation.drawn == 4 * (config.pixels - generation.request.prefix)
