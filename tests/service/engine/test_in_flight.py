"""The limit of images in flight per caller."""

from __future__ import annotations

import pytest

from scanline.service.engine.generation import Generation, GenerationSpec
from scanline.service.engine.in_flight import InFlightLimiter, TooManyInFlightError
from tests.service.fixtures import GREY


def waiting(caller: str, n: int) -> Generation:
    return Generation("fake", GREY, GenerationSpec(n=n, seed=0), caller=caller)


def test_a_caller_without_live_generations_is_forgotten() -> None:
    limiter = InFlightLimiter(5)
    generations = [waiting("a", 1), waiting("a", 1)]
    for one in generations:
        limiter.track("a", one)
    for one, known in zip(generations, (["a"], []), strict=True):
        one.finish(0.0)
        assert list(limiter._live) == known


def test_the_in_flight_limit_counts_unfinished_images_of_all_requests() -> None:
    limiter = InFlightLimiter(5)
    generations = [waiting("a", 3), waiting("a", 1)]
    for one in generations:
        limiter.track("a", one)
    limiter.check("a", 1)
    with pytest.raises(TooManyInFlightError, match="you have 4 images in flight"):
        limiter.check("a", 2)
    generations[0].unfinished -= 1  # as if one of its images had finished
    limiter.check("a", 2)
