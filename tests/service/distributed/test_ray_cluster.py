"""Joining a Ray cluster: errors, missing resources, and waiting for replicas."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from scanline.model.checkpoint import Checkpoint, CheckpointError, load_checkpoint
from scanline.model.decoders.base import BackendError
from scanline.service import __version__
from scanline.service.distributed.replica import Replica
from scanline.service.server import serve
from scanline.service.settings import Settings
from tests.fake_clock import Clock
from tests.service.distributed.fixtures import PROGRAM, import_with_ray
from tests.service.fixtures import GREY, save_tiny, tiny_model

RAY_CLUSTER = "scanline.service.distributed.ray_cluster"
DEPLOYMENT = "scanline.service.distributed.deployment"


@pytest.fixture
def settings() -> Settings:
    return Settings(port=0, cluster=True)


def test_ray_is_not_installed(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, RAY_CLUSTER, raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"needs ray: pip install 'scanline-rnn\[cluster\]'"):
        serve(settings)


@pytest.mark.parametrize("kind", [ConnectionError, RuntimeError, TimeoutError])
def test_no_cluster_is_reachable(
    settings: Settings, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise kind("nobody listens")

    joining = ModuleType(RAY_CLUSTER)
    joining.RayCluster = refuse  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, RAY_CLUSTER, joining)
    expected = r"connect to a Ray cluster: nobody listens; .*RAY_ADDRESS .* RAY_AUTH_MODE=token"
    with pytest.raises(ValueError, match=expected):
        serve(settings)


def test_missing_resources() -> None:
    missing_resources = import_with_ray(RAY_CLUSTER).missing_resources
    two = Settings(cluster=True, min_replicas=2, max_replicas=4, replica_cpus=1.5)
    assert missing_resources(two, {"CPU": 3.0}) == ""
    assert missing_resources(two, {"CPU": 2.0}) == "3 CPUs (2 free)"
    gpus = Settings(cluster=True, replica_cpus=1, replica_gpus=0.5)
    assert missing_resources(gpus, {}) == "1 CPUs (0 free) and 0.5 GPUs (0 free)"


def test_a_single_machine_refuses_more_replicas_than_it_may_have() -> None:
    joining = import_with_ray(RAY_CLUSTER)
    cluster = joining.RayCluster.__new__(joining.RayCluster)
    cluster._own = True
    settings = Settings(cluster=True, max_replicas=2, max_replicas_per_node=1)
    with pytest.raises(BackendError, match=r"tiny cannot have 2 replicas .*_PER_NODE is 1"):
        cluster.open(Checkpoint("tiny", tiny_model(GREY)), settings, None)


def test_the_error_says_why_replicas_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    joining = import_with_ray(RAY_CLUSTER)
    told = (
        "The deployment failed to start 3 times in a row. See controller logs. Error:\n"
        "ray::ServeReplica:x.initialize() (pid=7, ip=192.0.2.2)\n"
        '  File "replica.py", line 1928, in initialize\n'
        "    raise RuntimeError(traceback.format_exc()) from None\n"
        "RuntimeError: Traceback (most recent call last):\n"
        '  File "replica.py", line 56, in __init__\n'
        "    raise CheckpointError(\n"
    )

    def error_message(message: str, status: str = "DEPLOY_FAILED") -> str:
        deployments = {"x": SimpleNamespace(message=message)} if message else {}
        one = SimpleNamespace(status=status, message="Failed to update.", deployments=deployments)
        overview = SimpleNamespace(applications={"scanline-x": one})
        monkeypatch.setattr(joining.serve, "status", lambda: overview)
        with pytest.raises(BackendError) as raised:
            joining._wait_for_replicas(None, "scanline-x", PROGRAM)
        return str(raised.value)

    cannot = "the replicas of x cannot start: "
    other = f"{told}scanline.model.checkpoint.CheckpointError: its weights: a.b are others\n"
    assert error_message(other) == f"{cannot}CheckpointError: its weights: a.b are others"
    several = f"{told}pydantic_core.ValidationError: 1 error\nport\n  Not a number [x]\n"
    assert error_message(several) == f"{cannot}ValidationError: 1 error port Not a number [x]"
    assert error_message("Nothing like it.") == f"{cannot}Nothing like it."
    assert error_message("") == "Failed to update."


def test_a_frontend_waits_for_replicas_of_its_program(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    joining = import_with_ray(RAY_CLUSTER)
    clock = Clock()

    def sleep(seconds: float) -> None:
        clock.now += 10.0

    monkeypatch.setattr(joining, "time", SimpleNamespace(monotonic=clock, sleep=sleep))
    one = SimpleNamespace(status="DEPLOYING")
    overview = SimpleNamespace(applications={"scanline-x": one})
    monkeypatch.setattr(joining.serve, "status", lambda: overview)

    def wait(*answers: set[str]) -> int:
        left = iter(answers)
        monkeypatch.setattr(joining, "running_programs", lambda *_: next(left))
        joining._wait_for_replicas(None, "scanline-x", PROGRAM)
        return len(answers) - len(list(left))

    nearly: list[set[str]] = [set(), {"old"}, {"old", PROGRAM}]
    assert wait(*nearly, *[{PROGRAM}] * 9) == len(nearly) + joining.OTHERS_SECONDS / 10
    assert "scanline-x: continuing with the replicas that run" in caplog.text
    one.status = "RUNNING"
    assert wait() == 0


def test_a_replica_refuses_other_weights_and_other_versions(tmp_path: Path) -> None:
    digest = load_checkpoint(save_tiny(tmp_path, "theirs")).digest
    fields = {"weights": tmp_path, "backend": "reference", "slots": 2}
    Replica("theirs", digest, fields, PROGRAM)._engine.close(0.0)
    other = tiny_model(GREY)
    other.head.predictor.bias.data += 1e-3
    with pytest.raises(
        CheckpointError, match=r"weights of theirs in .* differ from the frontend's"
    ):
        Replica("theirs", Checkpoint("theirs", other).digest, fields, PROGRAM)
    with pytest.raises(RuntimeError, match=r"has Scanline 0.*, but the frontend has 9\.9\.9"):
        Replica("theirs", digest, fields, "9.9.9 of another day")


def test_a_program_depends_on_code_weights_and_replica_settings() -> None:
    deploying = import_with_ray(DEPLOYMENT)
    model = Checkpoint("tiny", tiny_model(GREY))

    def program(checkpoint: Checkpoint = model, **changes: Any) -> str:
        named: str = deploying.program_id(checkpoint, Settings(cluster=True, **changes))
        return named

    assert program().startswith(f"{__version__} ")
    # Settings of the frontend only.
    assert program() == program(port=9000, max_waiting=9000, api_key="x")
    # Replicas need not start again for these, which they read when they start.
    assert program() == program(log_format="json", log_level="debug", drain_seconds=60)
    other = tiny_model(GREY)
    other.head.predictor.bias.data += 1e-3
    others = [
        program(Checkpoint("tiny", other)), program(slots=3), program(max_replicas=2),
        program(drain_seconds=1),
    ]  # fmt: skip
    assert len({program(), *others}) == 5
