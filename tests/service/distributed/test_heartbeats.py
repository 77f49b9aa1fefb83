"""Heartbeats: replicas that are silent, unreachable or of another kind."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from scanline.service.distributed.heartbeats import HeartbeatMonitor
from scanline.service.distributed.messages import ReplicaReport
from scanline.service.engine.generation import GenerationSpec
from tests.fake_clock import Clock
from tests.service.distributed.fixtures import assert_equals_local_engine, distributed_engine, drawn
from tests.service.fixtures import DEADLINE, until


def test_a_silent_replica_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scanline.service.distributed.heartbeats.HEARTBEAT_SECONDS", 0.05)
    with distributed_engine(tmp_path) as (engine, local):
        both = {*engine.reports}
        local.silent = local.replicas[:1]
        since = engine._heartbeats._last_without_silence
        until(lambda: engine._clock() - since > 0.5, "many heartbeat")
        assert {*engine.reports} == both  # it may still draw its work items
        local.join()  # a new replica is noticed meanwhile
        until(lambda: len(engine.reports) == 3, "the report of one more")
        assert_equals_local_engine(drawn(engine, GenerationSpec(n=9, seed=0)))
        monkeypatch.setattr("scanline.service.distributed.heartbeats.SILENT_SECONDS", 0.5)
        until(lambda: len(engine.reports) == 2, "its end")
        assert engine.alive


def test_a_new_try_waits_until_all_replicas_report() -> None:
    """The report of a lost replica expires, while others still count."""
    clock = Clock()
    heartbeats = HeartbeatMonitor("it", None, lambda: 0, lambda _: None, clock)  # type: ignore[arg-type]
    one, other = (ReplicaReport(name, 1, 0, "fake", "fake", None, []) for name in ("one", "other"))
    heartbeats._record([one, other], [])
    waiting = heartbeats._next
    heartbeats._record([one], [OSError("no way there")])
    assert {*heartbeats.reports} == {"one"}
    assert not waiting.is_set()
    heartbeats._record([one], [])
    assert waiting.is_set()
    clock.now += 10.0
    heartbeats._record([], [OSError("no way there")])
    assert heartbeats.reports == {}


@pytest.mark.parametrize("rounds", range(5))
def test_a_new_try_is_cancelled_even_while_replicas_report(rounds: int) -> None:
    """The cancellation comes ``rounds`` of the event loop after the reports."""
    heartbeats = HeartbeatMonitor("it", None, lambda: 0, lambda _: None, Clock())  # type: ignore[arg-type]
    report = ReplicaReport("one", 1, 0, "fake", "fake", None, [])

    async def cancel() -> None:
        waiting = asyncio.create_task(heartbeats.wait_for_next())
        await asyncio.sleep(0.01)
        heartbeats._record([report], [])
        for _ in range(rounds):
            await asyncio.sleep(0)
        cancelled = waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled() is cancelled  # False if it had ended before

    asyncio.run(cancel())


def test_if_all_replicas_are_silent_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("scanline.service.distributed.heartbeats.HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr("scanline.service.distributed.heartbeats.LOST_SECONDS", 0.0)
    with distributed_engine(tmp_path) as (engine, local):
        local.silent = [*local.replicas]
        since = engine._heartbeats._last_without_silence
        until(lambda: engine._clock() - since > 0.5, "many heartbeat")
        assert engine.alive
        monkeypatch.setattr("scanline.service.distributed.heartbeats.SILENT_SECONDS", 0.5)
        until(lambda: not engine.alive, "the loss of all replicas")
        local.silent = []
        until(lambda: engine.alive, "the return of the replicas")
    assert "tiny: no replica reports, so nothing is drawn: all are silent" in caplog.text


def test_replicas_that_cannot_be_reached_count_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("scanline.service.distributed.heartbeats.LOST_SECONDS", 0.2)
    monkeypatch.setattr("scanline.service.distributed.heartbeats.HEARTBEAT_SECONDS", 0.05)
    with distributed_engine(tmp_path) as (engine, local):

        async def nobody(*asked: object) -> tuple[list[ReplicaReport], list[Exception]]:
            raise OSError("no way there")

        with monkeypatch.context() as patch:
            patch.setattr(local, "heartbeat", nobody)
            until(lambda: not engine.alive, "the loss of all replicas")
            assert engine.slots == 0
        until(lambda: engine.alive, "the return of the replicas")
    told = [record.getMessage() for record in caplog.records]
    assert (
        sum(
            "no replica reports, so nothing is drawn: OSError('no way there')" in one
            for one in told
        )
        == 1
    )
    assert told.count("tiny: replicas report again") == 1


def test_reports_of_replicas_that_draw_other_bytes_do_not_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    heartbeats = HeartbeatMonitor("it", None, lambda: 0, lambda _: None, clock)  # type: ignore[arg-type]
    gpu = ReplicaReport("gpu", 1, 0, "triton", "triton H100", None, [])
    one = ReplicaReport("one", 1, 0, "native", "native arithmetic-1 int16", 1, [])
    newer = ReplicaReport("newer", 1, 0, "native", "native arithmetic-2 int16", 2, [])
    heartbeats._record([gpu, one], [])
    assert {*heartbeats.reports} == {"one"}  # the newest arithmetic of the first reports
    assert "the replica gpu is refused" in caplog.text
    heartbeats._record([newer, one._replace(replica="other"), one], [])
    assert {*heartbeats.reports} == {"one", "other"}  # those that draw already
    heartbeats._record([gpu], [OSError("no way there")])
    assert {*heartbeats.reports} == {"one", "other"}  # they may still draw
    clock.now += 10.0
    heartbeats._record([gpu], [])
    assert heartbeats.reports == {}
    heartbeats._record([gpu], [])
    assert {*heartbeats.reports} == {"gpu"}


def test_waiting_for_the_next_heartbeat_is_bounded_if_a_replica_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scanline.service.distributed.heartbeats.LOST_SECONDS", 0.0)
    heartbeats = HeartbeatMonitor("it", None, lambda: 0, lambda _: None, Clock())  # type: ignore[arg-type]

    async def no_heartbeat_comes() -> None:
        waiting = asyncio.create_task(heartbeats.wait_for_next())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()  # no replica could draw it
        heartbeats.reports = {"other": ReplicaReport("other", 1, 0, "fake", "fake", None, [])}
        await asyncio.wait_for(waiting, DEADLINE)

    asyncio.run(no_heartbeat_comes())
