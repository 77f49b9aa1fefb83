"""Failover: replicas that die or fail, and requests that fail."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import numpy as np
import pytest

from scanline.kernels.native.cpu import cpu_isas
from scanline.service.distributed.engine import MAX_TRIES, DistributedEngine, _Assignment
from scanline.service.distributed.messages import (
    ImageProgress,
    ImageUpdate,
    ItemUpdates,
    ReplicaReport,
    WorkItem,
)
from scanline.service.engine.generation import Generation, GenerationSpec
from scanline.service.engine.image import CanvasView, FinishReason
from scanline.service.engine.queue_limits import ClosedError, QueueLimits
from tests.service.distributed.fixtures import (
    SLOTS,
    SPECS,
    FakeStream,
    assert_equals_local_engine,
    distributed_engine,
    drawn,
    record_cancels,
)
from tests.service.engine.fixtures import RecordingObserver
from tests.service.fixtures import GREY, until


@pytest.mark.parametrize(("name", "life"), [("many", 0), *((name, 1) for name in SPECS)])
def test_other_replicas_finish_a_lost_replicas_images_with_the_same_bytes(
    name: str, life: int, tmp_path: Path
) -> None:
    observer = RecordingObserver()
    with distributed_engine(tmp_path, observer=observer) as (engine, local):
        local.lives = [life, life]
        generation = drawn(engine, SPECS[name])
        assert not local.lives
        assert_equals_local_engine(generation)
    assert observer.again >= 2


def test_the_next_replica_sends_only_new_pixels(tmp_path: Path) -> None:
    with distributed_engine(tmp_path, count=1) as (engine, local):
        local.lives = [1]
        generation = drawn(engine, GenerationSpec(n=1, seed=3))
        (_, first), (_, second) = local.items
        assert first.progress == [ImageProgress(0, 0)]
        assert 0 < second.progress[0].position <= GREY.pixels
        assert_equals_local_engine(generation)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("told", ["advance", "finish_image"])
def test_a_bug_in_applying_updates_ends_the_generation_without_another_try(
    told: str,
    after: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cancelled = record_cancels(monkeypatch)
    with distributed_engine(tmp_path) as (engine, local):
        tell, failed = getattr(engine._progress, told), list[Generation]()

        def fail(generation: Generation, *rest: object) -> None:
            if failed or after:
                tell(generation, *rest)
            if not failed:
                failed.append(generation)
                raise MemoryError

        monkeypatch.setattr(engine._progress, told, fail)
        touched = drawn(engine, SPECS["one"])
        assert failed == [touched]
        assert touched.error is not None
        assert engine.slots_in_use == engine.running == 0
        # Otherwise its replica would continue in vain.
        assert len(local.items) == len(cancelled) == 1
        assert "MemoryError" in caplog.text
        assert "drawn again" not in caplog.text
        assert_equals_local_engine(drawn(engine, SPECS["completion"]))


def test_progress_resets_the_number_of_tries() -> None:
    engine = DistributedEngine("tiny", GREY, None, SLOTS, QueueLimits())  # type: ignore[arg-type]
    generation = engine.queue.submit(GenerationSpec(n=1, seed=0))
    canvas = np.zeros((GREY.pixels, 1), np.uint8)
    generation.images[0].start(CanvasView(canvas, np.zeros(1, np.int32)))
    assignment = _Assignment(generation, generation.images, MAX_TRIES)
    engine._apply_updates(assignment, [ImageUpdate(0, 0, canvas[:0], [], None)])
    assert assignment.tries == MAX_TRIES
    engine._apply_updates(assignment, [ImageUpdate(0, 0, canvas[:5], [], None)])
    assert assignment.tries == 1
    engine._loop.close()


class SecondImageOnly(FakeStream):
    """Stream that sends updates of the second image only, and dies once that is drawn."""

    over = False

    async def __anext__(self) -> ItemUpdates:
        while not self.over:
            updates = [update for update in await anext(self._updates) if update.image == 1]
            self.over = any(update.result for update in updates)
            if updates:
                return updates
        self.cancel()
        raise ConnectionError("the replica died")


def test_images_before_and_after_a_finished_one_become_two_work_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with distributed_engine(tmp_path, count=1) as (engine, local):
        draw = local.draw

        def first(item: WorkItem) -> FakeStream:
            monkeypatch.setattr(local, "draw", draw)
            local.items.append((local.replicas[0], item))
            return SecondImageOnly(local.replicas[0].draw(item), None)

        monkeypatch.setattr(local, "draw", first)
        generation = drawn(engine, GenerationSpec(n=3, seed=5))
        assert [item.spec.n for _, item in local.items] == [3, 1, 1]
        assert_equals_local_engine(generation)


@pytest.mark.parametrize("error", [OSError("no way there"), asyncio.CancelledError()], ids=repr)
def test_failed_sends_and_heartbeats_are_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    with distributed_engine(tmp_path, count=1) as (engine, local):
        draw, heartbeat, left = local.draw, local.heartbeat, {"draw": 1, "heartbeat": 1}

        def failing(item: WorkItem) -> FakeStream:
            if left["draw"]:
                left["draw"] -= 1
                raise error
            return draw(item)

        async def silent(
            frontend: str, share: float, reproducibility: str | None
        ) -> tuple[list[ReplicaReport], list[Exception]]:
            if left["heartbeat"]:
                left["heartbeat"] -= 1
                raise error
            return await heartbeat(frontend, share, reproducibility)

        monkeypatch.setattr(local, "draw", failing)
        monkeypatch.setattr(local, "heartbeat", silent)
        assert_equals_local_engine(drawn(engine, GenerationSpec(n=2, seed=0)))
        until(lambda: not left["heartbeat"], "a heartbeat")
        local.join()
        until(lambda: len(engine.reports) == 2, "the report of one more")
        assert left == {"draw": 0, "heartbeat": 0}


@pytest.mark.skipif("avx2" not in cpu_isas()[1:], reason="this CPU has no ISA besides AVX2")
@pytest.mark.parametrize("first", ["avx2", None])
def test_replicas_on_different_isas_draw_one_image(
    first: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replicas die again and again, so that parts of one image are drawn by both."""
    with distributed_engine(
        tmp_path, count=0, fields={"backend": "native", "threads": 1}, wait=False
    ) as (engine, local):
        for isa in (first, None if first else "avx2"):
            with monkeypatch.context() as patch:
                if isa:
                    patch.setenv("SCANLINE_ISA", isa)
                local.join()
        isas = {replica._engine.decoder.isa for replica in local.replicas}  # type: ignore[attr-defined]
        assert isas == {"avx2", cpu_isas()[0]}
        until(lambda: len(engine.reports) == 2, "both reports")
        for spec in SPECS.values():
            local.lives[:] = [1, 1]
            assert_equals_local_engine(drawn(engine, spec), "native")
        assert {id(replica) for replica, _ in local.items} == {id(one) for one in local.replicas}


def test_a_work_item_that_fails_everywhere_ends_in_an_error(tmp_path: Path) -> None:
    with distributed_engine(tmp_path) as (engine, local):
        local.lives = [0] * MAX_TRIES
        failed = drawn(engine, GenerationSpec(n=1, seed=0))
        assert failed.error
        assert failed.images[0].finish_reason is FinishReason.ERROR
        assert len(local.items) == MAX_TRIES
        assert_equals_local_engine(drawn(engine, GenerationSpec(n=1, seed=0)))


def test_a_work_item_waits_for_the_next_heartbeat_after_two_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with distributed_engine(tmp_path) as (engine, local):
        asked: list[WorkItem] = []

        def unreachable(item: WorkItem) -> FakeStream:
            asked.append(item)
            raise OSError("no way there")

        async def nobody(*asked: object) -> tuple[list[ReplicaReport], list[Exception]]:
            raise OSError("no way there")

        with monkeypatch.context() as patch:
            patch.setattr(local, "draw", unreachable)
            patch.setattr(local, "heartbeat", nobody)
            generation = engine.queue.submit(GenerationSpec(n=1, seed=0))
            until(lambda: len(asked) == 2, "a second try")
            since = engine._clock()
            until(lambda: engine._clock() > since + 0.3)  # many iterations of the main loop
        with engine.queue.reading(generation):
            until(lambda: generation.finished, "the return of the replicas")
        assert len(asked) == 2
        assert_equals_local_engine(generation)


def test_a_work_item_that_fails_on_one_replica_is_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with distributed_engine(tmp_path) as (engine, local):
        decoder = local.replicas[0]._engine.decoder

        def fail(*_: object) -> None:
            monkeypatch.undo()
            raise RuntimeError("a step that fails")

        monkeypatch.setattr(decoder, "launch", fail)
        generation = drawn(engine, GenerationSpec(n=4, seed=0))
        assert generation.error is None
        assert_equals_local_engine(generation)


class SilentStream:
    """Stream without updates, until its replica dies."""

    def __init__(self, dies: threading.Event) -> None:
        self._dies = dies

    def __aiter__(self) -> SilentStream:
        return self

    async def __anext__(self) -> ItemUpdates:
        while not self._dies.is_set():  # noqa: ASYNC110 - another thread sets it
            await asyncio.sleep(0.01)
        raise ConnectionError("the replica died")

    def cancel(self) -> None:
        pass


@pytest.mark.parametrize("method", ["_admit", "_check_variants", "_assign"])
def test_a_bug_in_the_engine_ends_all_generations_with_an_error(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with distributed_engine(tmp_path) as (engine, local):
        dies = threading.Event()
        monkeypatch.setattr(local, "draw", lambda item: SilentStream(dies))
        running = engine.queue.submit(GenerationSpec(n=3, seed=0), detached=True)
        until(lambda: engine.running == 3, "images at replicas")

        def fail(*_: object) -> None:
            raise MemoryError

        whose = engine._heartbeats if method == "_check_variants" else engine
        monkeypatch.setattr(whose, method, fail)
        if method == "_assign":
            dies.set()
        until(lambda: engine.broken and running.finished, "the end of it")
        assert running.error
        assert {image.finish_reason for image in running.images} == {FinishReason.ERROR}
        assert not engine.alive
        with pytest.raises(ClosedError):
            engine.queue.submit(GenerationSpec(n=1, seed=0))
