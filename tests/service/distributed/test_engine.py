"""The distributed engine: the same bytes as a local one, capacity, cancellation and reports."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from scanline.model.sampling import SamplingParams
from scanline.service.distributed.autoscaling import replicas_for_slots
from scanline.service.distributed.messages import (
    ImageProgress,
    ReplicaReport,
    WorkItem,
    image_update,
)
from scanline.service.engine.generation import Generation, GenerationSpec, GenerationStatus
from scanline.service.engine.image import CanvasView, FinishReason, Image
from scanline.service.engine.provenance import Provenance
from scanline.service.engine.queue import Queue
from scanline.service.engine.queue_limits import ClosedError, QueueLimits
from tests.fake_clock import Clock
from tests.service.distributed.fixtures import (
    SLOTS,
    SPECS,
    VALUES,
    FakeStream,
    assert_equals_local_engine,
    distributed_engine,
    drawn,
    record_cancels,
    replica_is_idle,
)
from tests.service.engine.fixtures import RecordingObserver
from tests.service.fixtures import GREY, until


@pytest.mark.parametrize("name", SPECS)
def test_replicas_draw_the_bytes_of_a_local_engine(name: str, tmp_path: Path) -> None:
    with distributed_engine(tmp_path) as (engine, _):
        assert_equals_local_engine(drawn(engine, SPECS[name]))


def test_the_rate_counts_all_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guided image has two slots, and the prefix is not drawn."""
    measured: list[int] = []
    with distributed_engine(tmp_path) as (engine, _):
        monkeypatch.setattr(engine.queue, "update_rate", lambda pixels, _: measured.append(pixels))
        for name in ("guided", "completion"):
            measured.clear()
            generation = drawn(engine, SPECS[name])
            spec, pixels = generation.spec, engine.config.pixels
            assert (spec.slots_per_image, spec.prefix > 0) == (
                (2, False) if name == "guided" else (1, True)
            )
            to_draw = spec.slots_per_image * spec.n * (pixels - spec.prefix)
            until(lambda wanted=to_draw: sum(measured) == wanted, "a report")  # type: ignore[misc]


def test_an_update_starts_after_the_received_pixels() -> None:
    image = Image(0, 1, CanvasView(VALUES.copy(), np.array([9], np.int32)))
    assert image_update(image, ImageProgress(12, 0)) == (None, ImageProgress(12, 0))
    for position in (9, 4):  # another particle was displayed meanwhile
        assert image_update(image, ImageProgress(position, 1)) == (None, ImageProgress(position, 1))
    update, known = image_update(image, ImageProgress(4, 0))
    assert known == ImageProgress(9, 0)
    assert update is not None
    assert (update.start, len(update.pixels), update.result) == (4, 5, None)
    image.revisions.append(2)
    update, known = image_update(image, known)
    assert update is not None
    assert (update.start, update.revisions, known) == (2, [2], ImageProgress(9, 1))


def test_an_image_that_ends_early_on_its_second_replica_still_sends_its_result() -> None:
    """It failed when it was drawn again, or a machine of another variant had fewer revisions."""
    for known in (ImageProgress(12, 0), ImageProgress(9, 1)):
        image = Image(0, 1, CanvasView(VALUES.copy(), np.array([9], np.int32)))
        image.finish(FinishReason.ERROR, None)
        update, after = image_update(image, known)
        assert update is not None
        assert update.result is not None
        assert (update.start, len(update.pixels), after) == (known.position, 0, known)


def test_a_replica_has_no_queue_limit_and_no_result_cache(tmp_path: Path) -> None:
    """The frontend bounds waiting images and keeps results."""
    fields = {"max_images": 2, "max_waiting": 2}
    with distributed_engine(tmp_path, count=1, fields=fields) as (engine, local):
        (replica,) = local.replicas
        submit = replica._engine.queue.submit
        many = [submit(GenerationSpec(n=1, seed=j), detached=True) for j in range(SLOTS + 4)]
        until(lambda: all(one.finished for one in many), "their end")
        drawn(engine, GenerationSpec(n=1, seed=0))
        until(lambda: not replica._engine.queue._results._all, "its being forgotten")


def test_a_replica_schedules_by_caller_and_request_size(tmp_path: Path) -> None:
    """A large request consists of many work items, none of which is large."""
    with distributed_engine(tmp_path, count=1) as (engine, local):
        queue = local.replicas[0]._engine.queue
        begun: list[Generation] = []
        submit = queue.submit

        def note(*given: Any, **named: Any) -> Generation:
            begun.append(submit(*given, **named))
            return begun[-1]

        queue.submit = note  # type: ignore[method-assign]
        generation = engine.queue.submit(
            GenerationSpec(n=7, seed=0, sampling=SamplingParams(label=1, guidance=2.0)),
            caller="me",
        )
        with engine.queue.reading(generation):
            until(lambda: generation.finished, "the generation's end")
    assert len(begun) > 1
    for one in begun:
        assert (one.caller, one.request_slots, one.slot_demand) == ("me", 14, 0)
    half = Generation("tiny", GREY, GenerationSpec(n=4, seed=0), request_slots=42)
    half.unfinished = 2
    assert half.slot_demand == 21


def test_a_cancelled_generation_ends_on_every_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = record_cancels(monkeypatch)
    with distributed_engine(tmp_path) as (engine, local):
        generation = engine.queue.submit(GenerationSpec(n=400, seed=0))
        with engine.queue.reading(generation):
            until(lambda: generation.drawn_pixels, "the first pixel")
            engine.queue.cancel(generation)
            until(lambda: generation.finished, "its end")
        reasons = {image.finish_reason for image in generation.images}
        assert reasons <= {FinishReason.CANCELLED, FinishReason.LENGTH}
        assert FinishReason.CANCELLED in reasons
        assert engine.running == 0
        until(lambda: told, "the cancellation")
        until(lambda: all(map(replica_is_idle, local.replicas)), "idle replicas")


def test_a_generation_without_readers_ends_on_every_replica(tmp_path: Path) -> None:
    with distributed_engine(tmp_path, grace=0.0) as (engine, _):
        generation = engine.queue.submit(GenerationSpec(n=400, seed=0))
        with engine.queue.reading(generation):
            until(lambda: generation.drawn_pixels, "the first pixel")
        until(lambda: generation.finished, "its end")
        assert generation.cancelled


def test_images_are_spread_over_all_replicas(tmp_path: Path) -> None:
    with distributed_engine(tmp_path, count=3) as (engine, local):
        drawn(engine, GenerationSpec(n=30, seed=0))
        given = Counter[str]()
        for replica, item in local.items:
            given[replica.heartbeat("", 0).replica] += item.spec.n
        assert sum(given.values()) == 30
        assert len(given) == 3


def test_a_replica_gets_little_more_than_it_has_slots_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many images as the replicas have slots, and one more each, in equal work items."""
    observer, there = RecordingObserver(), list[int]()
    with distributed_engine(tmp_path, observer=observer) as (engine, local):
        draw = local.draw

        def watched(item: WorkItem) -> FakeStream:
            call = draw(item)
            given = sum(one.spec.n for _, one in local.items)
            there.append(given - observer.reasons.total())
            return call

        monkeypatch.setattr(local, "draw", watched)
        drawn(engine, GenerationSpec(n=30, seed=0))
        assert [item.spec.n for _, item in local.items[:2]] == [SLOTS + 1, SLOTS + 1]
    assert max(there) == 2 * (SLOTS + 1)


def test_a_new_replica_gets_work(tmp_path: Path) -> None:
    with distributed_engine(tmp_path, count=1) as (engine, local):
        local.join()
        until(lambda: len(engine.reports) == 2, "its report")
        assert engine.slots == 2 * SLOTS
        drawn(engine, GenerationSpec(n=2 * SLOTS, seed=0))
        assert len({id(replica) for replica, _ in local.items}) == 2


def test_without_replicas_images_wait_and_the_engine_is_not_alive(tmp_path: Path) -> None:
    with distributed_engine(tmp_path) as (engine, local):
        gone, local.replicas = local.replicas, []
        until(lambda: not engine.alive, "not being ready")
        generation = engine.queue.submit(GenerationSpec(n=2, seed=0))
        with engine.queue.reading(generation):
            assert generation.status is GenerationStatus.WAITING
            local.replicas = gone
            until(lambda: generation.finished, "its end")
        assert_equals_local_engine(generation)


def test_recipes_of_images_that_waited_for_a_replica_have_its_arithmetic(tmp_path: Path) -> None:
    with distributed_engine(tmp_path, 0, fields={"backend": "native"}, wait=False) as served:
        engine, local = served
        generation = engine.queue.submit(GenerationSpec(n=1, seed=0))
        generation.provenance = Provenance("weights", None, engine.arithmetic)
        assert engine.arithmetic is None
        with engine.queue.reading(generation):
            local.join()
            until(lambda: generation.finished, "its end")
        assert engine.arithmetic is not None
        assert generation.provenance.arithmetic == engine.arithmetic


def test_close_lets_generations_finish_and_refuses_new_ones(tmp_path: Path) -> None:
    with distributed_engine(tmp_path) as (engine, _):
        generation = engine.queue.submit(GenerationSpec(n=20, seed=0), detached=True)
        engine.close(30.0)
        assert all(image.finish_reason is FinishReason.LENGTH for image in generation.images)
        with pytest.raises(ClosedError):
            engine.queue.submit(GenerationSpec(n=1, seed=0))


def test_the_observer_receives_all_events(tmp_path: Path) -> None:
    observer = RecordingObserver()
    with distributed_engine(tmp_path, observer=observer) as (engine, local):
        local.lives = [1]
        drawn(engine, GenerationSpec(n=6, seed=0))
    assert observer.reasons == {FinishReason.LENGTH: 6}
    assert (len(observer.waits), len(observer.first_pixels), len(observer.ends)) == (1, 1, 1)


def test_images_waiting_at_the_frontend_count_for_autoscaling(tmp_path: Path) -> None:
    with distributed_engine(tmp_path) as (_, local):
        replica = local.replicas[0]
        replica.heartbeat("another frontend", 7.5)
        assert replica.record_autoscaling_stats() == {"slots": 7.5}
        replica.heartbeat("another frontend", 0.0)
        assert replica_is_idle(replica)


def test_waiting_images_are_counted_by_slots(tmp_path: Path) -> None:
    """Replicas are added even if few images wait, if they need many slots."""
    queue = Queue("it", GREY, QueueLimits(), Clock())
    queue.submit(GenerationSpec(n=3, seed=0, sampling=SamplingParams(guidance=2.0, label=1)))
    queue.submit(GenerationSpec(n=2, seed=0, sampling=SamplingParams(particles=5)))
    assert queue.waiting_slots() == 3 * 2 + 2 * 5
    for replicas, slots in ((1, 8.0), (2, 8.1), (3, 24.0)):
        context = SimpleNamespace(
            aggregated_metrics={"slots": {"one": slots / 2, "other": slots / 2}},
            config=SimpleNamespace(target_ongoing_requests=8),
        )
        assert replicas_for_slots(context) == (replicas, {})


def test_an_image_must_fit_into_the_smallest_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would block a replica's queue forever, for instance during a rolling update."""
    with distributed_engine(tmp_path) as (engine, local):
        assert engine.max_slots_per_image == SLOTS
        heartbeat = local.heartbeat

        async def smaller(*asked: Any) -> tuple[list[ReplicaReport], list[Exception]]:
            (first, *rest), silent = await heartbeat(*asked)
            return [first._replace(slots=3), *rest], silent

        monkeypatch.setattr(local, "heartbeat", smaller)
        until(lambda: engine.max_slots_per_image == 3, "its report")


def test_replicas_of_different_variants_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with distributed_engine(tmp_path) as (engine, local):
        one, other = (replica.heartbeat("", 0.0) for replica in local.replicas)
        engine._heartbeats._check_variants([one, other])
        assert "of different variants" not in caplog.text
        engine._heartbeats._check_variants([one, other._replace(variant="another")])
        assert "replicas are of different variants" in caplog.text
