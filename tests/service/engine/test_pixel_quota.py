"""Quota of pixels per caller and minute."""

from __future__ import annotations

from typing import Any

import pytest

from scanline.model.sampling import SamplingParams
from scanline.service.engine.generation import Generation, GenerationSpec
from scanline.service.engine.image import FinishReason
from scanline.service.engine.pixel_quota import PixelQuota
from scanline.service.engine.queue_limits import RefusedError
from tests.fake_clock import Clock
from tests.service.fixtures import GREY

T = GREY.pixels


def request(n: int = 1, **sampling: Any) -> Generation:
    spec = GenerationSpec(n=n, seed=0, sampling=SamplingParams(**sampling))
    return Generation("fake", GREY, spec)


def seconds_until_accepted(quota: PixelQuota, caller: str) -> int:
    try:
        quota.check(caller)
    except RefusedError as error:
        return error.retry_after
    return 0


def test_a_quota_is_paid_off_at_a_constant_rate() -> None:
    clock = Clock()
    quota = PixelQuota(60, clock=clock)  # one pixel per second
    quota.track("a", request(2))  # 60 pixels
    assert seconds_until_accepted(quota, "a") == 1
    assert seconds_until_accepted(quota, "b") == 0
    clock.now += 1
    assert seconds_until_accepted(quota, "a") == 0
    quota.track("a", request(4))  # larger than the quota, which is accepted and paid off later
    waits = seconds_until_accepted(quota, "a")
    assert waits == 2 * T * 2 - 1 + 1
    clock.now += waits - 1
    assert seconds_until_accepted(quota, "a") == 1
    clock.now += 1
    assert seconds_until_accepted(quota, "a") == 0


@pytest.mark.parametrize(("sampling", "slots"), [({"guidance": 2.0}, 2), ({"particles": 3}, 3)])
def test_a_pixel_counts_once_per_slot(sampling: dict[str, Any], slots: int) -> None:
    quota = PixelQuota(T * slots, clock=Clock())
    label: dict[str, Any] = {"label": 1} if "guidance" in sampling else {}
    quota.track("a", request(**sampling, **label))
    assert seconds_until_accepted(quota, "a") == 1
    larger = PixelQuota(T * slots + 1, clock=Clock())
    larger.track("a", request(**sampling, **label))
    assert seconds_until_accepted(larger, "a") == 0


def test_pixels_that_are_not_drawn_are_given_back() -> None:
    counted: list[tuple[str, int]] = []
    quota = PixelQuota(T, lambda *drawn: counted.append(drawn), Clock())
    generation = request(2)
    quota.track("a", generation)
    assert seconds_until_accepted(quota, "a") > 0
    for image in generation.images:
        image.finish_reason = FinishReason.CANCELLED
    generation.finish(0.0)
    assert seconds_until_accepted(quota, "a") == 0
    assert counted == [("a", 0)]


def test_callers_that_owe_nothing_are_forgotten() -> None:
    clock = Clock()
    quota = PixelQuota(T, clock=clock)
    for number in range(1000):
        quota.track(str(number), request())
        clock.now += 10
    assert len(quota._used) <= 7


def test_without_a_limit_nothing_is_counted() -> None:
    quota = PixelQuota(None)
    quota.track("a", request(1000))
    quota.check("a")
    assert not quota._used
