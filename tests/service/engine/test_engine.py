"""The engine draws the right pixels, alone and among others, with a fake and a real decoder."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from scanline.model.config import ModelConfig
from scanline.model.decoders.reference import ReferenceDecoder
from scanline.model.sampling import SamplingParams
from scanline.service.engine.generation import GenerationSpec, GenerationStatus
from scanline.service.engine.image import FinishReason
from tests.fake_clock import Clock
from tests.service.engine.fixtures import (
    EVERY_FAKE,
    RecordingObserver,
    assert_right,
    completion,
    drawn,
    finished,
    opened,
    running,
)
from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import COLOUR, GREY, tiny_model

CONFIGS = pytest.mark.parametrize("config", [GREY, COLOUR], ids=["grey", "colour"])


@CONFIGS
def test_a_generation_is_drawn(config: ModelConfig) -> None:
    decoder, observer, clock = FakeDecoder(config, 4), RecordingObserver(), Clock()

    def draw(slots: list[int]) -> None:
        clock.now += 0.5

    decoder.before_step = draw
    with opened(decoder, observer, clock) as engine:
        generation = engine.queue.submit(
            GenerationSpec(n=7, seed=2**64 - 3, sampling=SamplingParams(temperature=0.5))
        )
        submitted = clock.now
        clock.now += 2.5
        with engine.queue.reading(generation):
            engine.start()
            assert_right(generation)
        assert [i.seed for i in generation.images] == [2**64 - 3, 2**64 - 2, 2**64 - 1, 0, 1, 2, 3]
        assert generation.status is GenerationStatus.FINISHED
        assert generation.error is None
        assert generation.drawn_pixels == 7 * config.pixels
        assert engine.queue.find(generation.id) is generation
        assert engine.queue.find("gen_none") is None
        assert (generation.created, generation.started) == (submitted, submitted + 2.5)
        assert (generation.first_pixel, generation.ended) == (submitted + 3, clock.now)
    assert (observer.waits, observer.first_pixels) == ([2.5], [3.0])
    assert observer.ends == [clock.now - submitted]
    assert {seconds for seconds, _ in observer.steps} == {0.5}
    assert observer.reasons == {FinishReason.LENGTH: 7}
    assert observer.pixels == 7 * config.pixels


@EVERY_FAKE
def test_a_seed_gives_the_same_bytes_among_twenty_other_generations(
    decoders: type[FakeDecoder],
) -> None:
    spec = GenerationSpec(n=3, seed=77, sampling=SamplingParams(label=2))
    with running(decoders(GREY, 5)) as engine:
        alone = engine.queue.submit(spec)
        with engine.queue.reading(alone):
            before = drawn(alone)
        stop, others, errors = threading.Event(), Counter[str](), list[BaseException]()

        def crowd(number: int) -> None:
            draw = random.Random(number)
            try:
                while not stop.is_set() or not others[str(number)]:
                    asked = GenerationSpec(n=draw.randint(1, 3), seed=draw.getrandbits(64))
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

        threads = [threading.Thread(target=crowd, args=(j,)) for j in range(20)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(5):
                crowded = engine.queue.submit(spec)
                with engine.queue.reading(crowded):
                    for mine, theirs in zip(drawn(crowded), before, strict=True):
                        np.testing.assert_array_equal(mine, theirs)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert not errors
        assert len(others) == 20


# --- a real network -----------------------------------------------------------------------------

MASKS: dict[str, Callable[[int], NDArray[np.bool_]]] = {
    "first rows": lambda T: np.arange(T) < 11,
    "middle": lambda T: (np.arange(T) > 7) & (np.arange(T) < 20),
    "prefix and middle": lambda T: (np.arange(T) < 4) | (np.arange(T) % 3 == 1),
    "last only": lambda T: np.arange(T) == T - 1,
    "all but the last": lambda T: np.arange(T) < T - 1,
    "all": lambda T: np.ones(T, np.bool_),
}


@CONFIGS
def test_a_network_draws_the_same_bytes_alone_and_among_others(config: ModelConfig) -> None:
    decoder = ReferenceDecoder(tiny_model(config), 6)
    spec = GenerationSpec(n=2, seed=41, sampling=SamplingParams(label=1 if config.classes else -1))
    with running(decoder) as engine:
        alone = engine.queue.submit(spec)
        with engine.queue.reading(alone):
            before = drawn(alone)
        first = [
            engine.queue.submit(
                GenerationSpec(n=2, seed=s, sampling=SamplingParams(temperature=0.3))
            )
            for s in range(6)
        ]
        known = MASKS["first rows"](config.pixels)
        crowded = engine.queue.submit(spec)
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
@CONFIGS
def test_a_completion_keeps_known_pixels_anywhere(config: ModelConfig, mask: str) -> None:
    known = MASKS[mask](config.pixels)
    with running(ReferenceDecoder(tiny_model(config), 3)) as engine:
        generation = engine.queue.submit(completion(config, 3, known, n=4))
        with engine.queue.reading(generation):
            images = drawn(generation)
        canvas = generation.spec.canvas
        assert canvas is not None
        for pixels in images:
            np.testing.assert_array_equal(pixels[known], canvas[known])
        if not known.all():
            assert len({pixels[~known].tobytes() for pixels in images}) > 1
        assert generation.drawn_pixels == 4 * (config.pixels - generation.spec.prefix)
