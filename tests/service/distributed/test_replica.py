"""Replicas: shares of lost frontends, work items that they refuse, and replicas that exit."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from scanline.model.checkpoint import load_checkpoint
from scanline.model.decoders.native import ARITHMETIC
from scanline.model.sampling import SamplingParams
from scanline.service.distributed.messages import ImageProgress, WorkItem
from scanline.service.distributed.replica import Replica
from scanline.service.engine.generation import Generation, GenerationSpec
from tests.service.distributed.fixtures import (
    PROGRAM,
    SLOTS,
    assert_equals_local_engine,
    distributed_engine,
    drawn,
    replica_is_idle,
)
from tests.service.fixtures import GREY, save_tiny, until


def test_the_share_of_a_lost_frontend_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with distributed_engine(tmp_path) as (_, local):
        local.replicas[0].heartbeat("one that is gone", 7.5)
        monkeypatch.setattr("scanline.service.distributed.replica.SHARE_SECONDS", 0.0)
        until(lambda: replica_is_idle(local.replicas[0]), "its being forgotten")


def test_a_replica_sets_up_its_logs(tmp_path: Path, replica_logs: list[tuple[str, str]]) -> None:
    digest = load_checkpoint(save_tiny(tmp_path)).digest
    fields = {"weights": tmp_path, "backend": "reference", "slots": SLOTS}
    own = fields | {"log_format": "json", "log_level": "warning"}
    Replica("tiny", digest, own, PROGRAM)._engine.close(0.0)
    assert replica_logs == [("json", "warning")]


def test_a_broken_replica_exits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While idle it would be chosen for every work item, until Ray's next health check."""
    ended: list[int] = []

    def end(status: int) -> None:
        ended.append(status)
        raise ConnectionError("the process ended")

    monkeypatch.setattr("os._exit", end)
    digest = load_checkpoint(save_tiny(tmp_path)).digest
    fields = {"weights": tmp_path, "backend": "reference", "slots": SLOTS}
    replica = Replica("tiny", digest, fields, PROGRAM)
    replica.heartbeat("", 0.0)
    replica._engine.broken = True
    with pytest.raises(ConnectionError):
        replica.heartbeat("", 0.0)
    item = WorkItem(GenerationSpec(n=1, seed=0), [ImageProgress(0, 0)], "", 1)
    with pytest.raises(ConnectionError):
        asyncio.run(anext(replica.draw(item)))  # type: ignore[arg-type]
    assert ended == [1, 1]
    replica._engine.close(0.0)


def test_a_replica_that_draws_other_bytes_exits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def end(status: int) -> None:
        raise ConnectionError("the process ended")

    monkeypatch.setattr("os._exit", end)
    digest = load_checkpoint(save_tiny(tmp_path)).digest
    fields = {"weights": tmp_path, "backend": "native", "slots": SLOTS, "threads": 1}
    replica = Replica("tiny", digest, fields, PROGRAM)
    own = replica.heartbeat("", 0.0).reproducibility
    assert own == f"native arithmetic-{ARITHMETIC} int16"
    replica.heartbeat("", 0.0, own)
    others = ("machine", "native arithmetic-1 int8", f"native arithmetic-{ARITHMETIC + 1} int16")
    for other in others:
        with pytest.raises(ConnectionError):
            replica.heartbeat("", 0.0, other)
        item = WorkItem(GenerationSpec(n=1, seed=0), [ImageProgress(0, 0)], "", 1, other)
        with pytest.raises(ConnectionError):
            asyncio.run(anext(replica.draw(item)))  # type: ignore[arg-type]
    assert "the other replicas with other bytes (machine)" in caplog.text
    replica._engine.close(0.0)


def test_a_work_item_that_is_too_large_is_refused_without_blocking_others(tmp_path: Path) -> None:
    with distributed_engine(tmp_path, count=1) as (engine, local):
        wide = Generation(
            "tiny", GREY, GenerationSpec(n=1, seed=0, sampling=SamplingParams(particles=SLOTS + 1))
        )
        item = WorkItem.of(wide, wide.images, None)
        with pytest.raises(ValueError, match=f"needs {SLOTS + 1} slots"):
            asyncio.run(anext(aiter(local.replicas[0].draw(item))))  # type: ignore[arg-type]
        assert_equals_local_engine(drawn(engine, GenerationSpec(n=2, seed=0)))
