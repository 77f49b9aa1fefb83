"""The client of Ray Serve's replicas, some of which may be lost or silent."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from scanline.service.distributed.messages import ReplicaReport
from tests.service.distributed.fixtures import import_with_ray

RAY_CLIENT = "scanline.service.distributed.ray_client"


def fake_handle(*answers: list[Any] | Exception) -> Any:
    """Return a handle that gives these replies, one broadcast after another."""
    left = iter(answers)

    def results(timeout_s: float, return_exceptions: bool) -> list[Any]:
        assert timeout_s > 0
        assert return_exceptions
        answer = next(left)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return SimpleNamespace(broadcast=lambda *asked: SimpleNamespace(results=results), left=left)


def test_running_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    reaching = import_with_ray(RAY_CLIENT)
    exceptions = pytest.importorskip("ray.exceptions")
    monkeypatch.setattr("time.sleep", lambda seconds: None)

    def programs(*answers: list[Any] | Exception, seconds: float = 60.0) -> set[str]:
        handle = fake_handle(*answers)
        found: set[str] = reaching.running_programs(handle, seconds)
        assert list(handle.left) == []
        return found

    lost = exceptions.ActorDiedError()
    assert programs(["a", "a"]) == {"a"}
    assert programs(["a", lost, "b", TimeoutError()]) == {"a", "b"}
    assert programs([lost], [TimeoutError()], TimeoutError(), ["a"]) == {"a"}
    assert programs([lost], seconds=0) == set()
    assert programs([exceptions.RayTaskError("it", "", AttributeError("program")), "a"]) == set()
    assert programs(reaching.DeploymentUnavailableError("x")) == set()


def test_heartbeat_separates_reports_and_failures() -> None:
    reaching = import_with_ray(RAY_CLIENT)
    report, lost, silent = (
        ReplicaReport("it", 1, 0, "fake", "fake", None, []),
        OSError("lost"),
        TimeoutError(),
    )

    def heartbeat(answers: list[Any] | Exception) -> tuple[list[ReplicaReport], list[Exception]]:
        replicas = reaching.RayReplicaClient.__new__(reaching.RayReplicaClient)
        replicas._handle = fake_handle(answers)
        met: tuple[list[ReplicaReport], list[Exception]] = asyncio.run(
            replicas.heartbeat("", 0.0, None)
        )
        return met

    assert heartbeat([report]) == ([report], [])
    assert heartbeat([silent, report, lost]) == ([report], [silent, lost])
    assert heartbeat(silent) == ([], [silent])
    with pytest.raises(reaching.DeploymentUnavailableError):
        heartbeat(reaching.DeploymentUnavailableError("x"))
