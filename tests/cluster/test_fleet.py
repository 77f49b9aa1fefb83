"""A model drawn by several replicas: the same bytes, whoever dies, and nobody left holding any."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from scanline.service.cluster.parts import Known, Part, Report, look_at
from scanline.service.cluster.scaling import by_slots
from scanline.service.generation import FinishReason, Generation, Image, Place, Spec, Status
from scanline.service.queue import ClosedError, Limits, Queue
from tests.clocks import Clock
from tests.cluster.fixtures import (
    SLOTS,
    SPECS,
    VALUES,
    Call,
    assert_as_by_one_engine,
    drawn,
    fleet_of,
    idle,
    watch_cancels,
)
from tests.engine.fixtures import Heard
from tests.service_fixtures import GREY, until


@pytest.mark.parametrize("name", SPECS)
def test_replicas_draw_the_bytes_of_one_engine(name: str, tmp_path: Path) -> None:
    with fleet_of(tmp_path) as (fleet, _):
        assert_as_by_one_engine(drawn(fleet, SPECS[name]))


def test_the_rate_is_that_of_all_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guided image has two; leading known pixels are not drawn."""
    measured: list[int] = []
    with fleet_of(tmp_path) as (fleet, _):
        monkeypatch.setattr(fleet.queue, "measure", lambda pixels, _: measured.append(pixels))
        for name in ("guided", "completion"):
            measured.clear()
            generation = drawn(fleet, SPECS[name])
            spec, pixels = generation.spec, fleet.config.pixels
            assert (spec.slots, spec.prefix > 0) == ((2, False) if name == "guided" else (1, True))
            to_draw = spec.slots * spec.n * (pixels - spec.prefix)
            until(lambda wanted=to_draw: sum(measured) == wanted, "a report")  # type: ignore[misc]


def test_nothing_is_told_of_an_image_until_it_is_past_what_is_known() -> None:
    image = Image(0, 1, Place(VALUES.copy(), np.array([9], np.int32)))
    assert look_at(image, Known(12, 0)) == (None, Known(12, 0))
    for position in (9, 4):  # where another particle was shown meanwhile
        assert look_at(image, Known(position, 1)) == (None, Known(position, 1))
    look, known = look_at(image, Known(4, 0))
    assert known == Known(9, 0)
    assert look is not None
    assert (look.start, len(look.pixels), look.end) == (4, 5, None)
    image.changed.append(2)
    look, known = look_at(image, known)
    assert look is not None
    assert (look.start, look.changed, known) == (2, [2], Known(9, 1))


def test_an_image_that_ends_before_what_is_known_of_it_has_an_end_all_the_same() -> None:
    """It failed where it was drawn again, or another kind of machine changed fewer particles."""
    for known in (Known(12, 0), Known(9, 1)):
        image = Image(0, 1, Place(VALUES.copy(), np.array([9], np.int32)))
        image.finish(FinishReason.ERROR, None)
        look, after = look_at(image, known)
        assert look is not None
        assert look.end is not None
        assert (look.start, len(look.pixels), after) == (known.position, 0, known)


def test_a_replica_refuses_nothing_and_keeps_nothing(tmp_path: Path) -> None:
    """How many may wait, and be asked for again, is the entrance's to say."""
    fields = {"max_images": 2, "max_waiting": 2}
    with fleet_of(tmp_path, count=1, fields=fields) as (fleet, here):
        (replica,) = here.replicas
        submit = replica._engine.queue.submit
        many = [submit(Spec(n=1, seed=j), detached=True) for j in range(40)]
        until(lambda: all(one.finished for one in many), "their end")
        drawn(fleet, Spec(n=1, seed=0))
        until(lambda: not replica._engine.queue._finished._all, "its being forgotten")


def test_a_replica_gives_turns_by_callers_and_by_whole_requests(tmp_path: Path) -> None:
    """Not by parts, of which a large request has many, none of them large."""
    with fleet_of(tmp_path, count=1) as (fleet, here):
        queue = here.replicas[0]._engine.queue
        begun: list[Generation] = []
        submit = queue.submit

        def note(*given: Any, **named: Any) -> Generation:
            begun.append(submit(*given, **named))
            return begun[-1]

        queue.submit = note  # type: ignore[method-assign]
        generation = fleet.queue.submit(Spec(n=21, seed=0, label=1, guidance=2.0), caller="me")
        with fleet.queue.reading(generation):
            until(lambda: generation.finished, "the generation's end")
    assert len(begun) > 1
    for part in begun:
        assert (part.caller, part.size, part.demand) == ("me", 42, 0)
    half = Generation("tiny", GREY, Spec(n=4, seed=0), size=42)
    half.unfinished = 2
    assert half.demand == 21


def test_a_cancelled_generation_is_let_go_by_every_replica(tmp_path: Path) -> None:
    with fleet_of(tmp_path) as (fleet, here):
        generation = fleet.queue.submit(Spec(n=400, seed=0))
        with fleet.queue.reading(generation):
            until(lambda: generation.drawn, "the first pixel")
            fleet.queue.cancel(generation)
            until(lambda: generation.finished, "its end")
        reasons = {image.finish_reason for image in generation.images}
        assert reasons <= {FinishReason.CANCELLED, FinishReason.LENGTH}
        assert FinishReason.CANCELLED in reasons
        assert fleet.running == 0
        until(lambda: all(map(idle, here.replicas)), "idle replicas")


def test_a_reader_that_leaves_lets_it_go(tmp_path: Path) -> None:
    with fleet_of(tmp_path, grace=0.0) as (fleet, _):
        generation = fleet.queue.submit(Spec(n=400, seed=0))
        with fleet.queue.reading(generation):
            until(lambda: generation.drawn, "the first pixel")
        until(lambda: generation.finished, "its end")
        assert generation.cancelled


def test_many_images_are_spread_over_all(tmp_path: Path) -> None:
    with fleet_of(tmp_path, count=3) as (fleet, here):
        drawn(fleet, Spec(n=60, seed=0))
        given = Counter[str]()
        for replica, part in here.parts:
            given[replica.meet("", 0).replica] += part.spec.n
        assert sum(given.values()) == 60
        assert len(given) == 3


def test_no_replica_is_given_much_more_than_it_has_slots_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, there = Heard(), list[int]()
    with fleet_of(tmp_path, observer=heard) as (fleet, here):
        draw = here.draw

        def watched(part: Part) -> Call:
            call = draw(part)
            given = sum(one.spec.n for _, one in here.parts)
            there.append(given - heard.reasons.total())
            return call

        monkeypatch.setattr(here, "draw", watched)
        drawn(fleet, Spec(n=30, seed=0))
    assert max(there) == 2 * (SLOTS + 1)


def test_one_that_joins_is_given_work(tmp_path: Path) -> None:
    with fleet_of(tmp_path, count=1) as (fleet, here):
        here.join()
        until(lambda: len(fleet.reports) == 2, "its report")
        assert fleet.slots == 2 * SLOTS
        drawn(fleet, Spec(n=32, seed=0))
        assert len({id(replica) for replica, _ in here.parts}) == 2


def test_without_replicas_images_wait_and_it_is_not_ready(tmp_path: Path) -> None:
    with fleet_of(tmp_path) as (fleet, here):
        gone, here.replicas = here.replicas, []
        until(lambda: not fleet.alive, "not being ready")
        generation = fleet.queue.submit(Spec(n=2, seed=0))
        with fleet.queue.reading(generation):
            assert generation.status is Status.WAITING
            here.replicas = gone
            until(lambda: generation.finished, "its end")
        assert_as_by_one_engine(generation)


def test_closing_finishes_what_there_is_and_takes_no_more(tmp_path: Path) -> None:
    with fleet_of(tmp_path) as (fleet, _):
        generation = fleet.queue.submit(Spec(n=20, seed=0), detached=True)
        fleet.close(30.0)
        assert all(image.finish_reason is FinishReason.LENGTH for image in generation.images)
        with pytest.raises(ClosedError):
            fleet.queue.submit(Spec(n=1, seed=0))


def test_the_observer_hears_what_clients_get(tmp_path: Path) -> None:
    heard = Heard()
    with fleet_of(tmp_path, observer=heard) as (fleet, here):
        here.lives = [1]
        drawn(fleet, Spec(n=6, seed=0))
    assert heard.reasons == {FinishReason.LENGTH: 6}
    assert (len(heard.waits), len(heard.first_pixels), len(heard.ends)) == (1, 1, 1)


def test_an_image_that_waits_elsewhere_counts_for_the_scaling(tmp_path: Path) -> None:
    with fleet_of(tmp_path) as (_, here):
        replica = here.replicas[0]
        replica.meet("another entrance", 7.5)
        assert replica.record_autoscaling_stats() == {"slots": 7.5}
        replica.meet("another entrance", 0.0)
        assert idle(replica)


def test_what_waits_is_counted_by_the_slots_that_it_wants(tmp_path: Path) -> None:
    """So that replicas are added where images of many slots wait, though they are few."""
    queue = Queue("it", GREY, Limits(), Clock())
    queue.submit(Spec(n=3, seed=0, guidance=2.0, label=1))
    queue.submit(Spec(n=2, seed=0, particles=5))
    assert queue.slots_wanted() == 3 * 2 + 2 * 5
    for replicas, slots in ((1, 8.0), (2, 8.1), (3, 24.0)):
        context = SimpleNamespace(
            aggregated_metrics={"slots": {"one": slots / 2, "other": slots / 2}},
            config=SimpleNamespace(target_ongoing_requests=8),
        )
        assert by_slots(context) == (replicas, {})


def test_an_image_fits_the_least_of_the_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while they are replaced by others: it would wait there for ever, and others behind it."""
    with fleet_of(tmp_path) as (fleet, here):
        assert fleet.largest == SLOTS
        meet = here.meet

        async def smaller(*asked: Any) -> tuple[list[Report], list[Exception]]:
            (first, *rest), silent = await meet(*asked)
            return [first._replace(slots=3), *rest], silent

        monkeypatch.setattr(here, "meet", smaller)
        until(lambda: fleet.largest == 3, "its report")


def test_replicas_are_told_that_a_part_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled = watch_cancels(monkeypatch)
    with fleet_of(tmp_path) as (fleet, _):
        generation = fleet.queue.submit(Spec(n=400, seed=0))
        with fleet.queue.reading(generation):
            until(lambda: generation.drawn, "the first pixel")
            fleet.queue.cancel(generation)
            until(lambda: generation.finished, "its end")
        until(lambda: cancelled, "their being told")


def test_a_large_request_is_spread_at_once(tmp_path: Path) -> None:
    """So many images as replicas have slots, and one more each, in as many equal parts."""
    with fleet_of(tmp_path) as (fleet, here):
        drawn(fleet, Spec(n=60, seed=0))
        assert [part.spec.n for _, part in here.parts[:2]] == [SLOTS + 1, SLOTS + 1]


def test_replicas_of_several_kinds_are_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with fleet_of(tmp_path) as (fleet, here):
        one, other = (replica.meet("", 0.0) for replica in here.replicas)
        fleet._meetings._check_variants([one, other])
        assert "of several kinds" not in caplog.text
        fleet._meetings._check_variants([one, other._replace(variant="another")])
        assert "replicas are of several kinds" in caplog.text
