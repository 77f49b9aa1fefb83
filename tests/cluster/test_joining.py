"""A cluster that cannot be joined: one sentence that says what to do."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from scanline.model.checkpoint import Checkpoint, CheckpointError, load_checkpoint
from scanline.service import __version__
from scanline.service.cluster.replica import Replica
from scanline.service.serving import serve
from scanline.service.settings import Settings
from tests.cluster.fixtures import PROGRAM
from tests.service_fixtures import GREY, save_tiny, tiny_model

DEPLOYING = "scanline.service.cluster.deploying"


@pytest.fixture
def settings() -> Settings:
    return Settings(port=0, cluster=True)


def test_without_ray(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, DEPLOYING, raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"needs ray: pip install -e '\.\[cluster\]'"):
        serve(settings)


@pytest.mark.parametrize("kind", [ConnectionError, RuntimeError, TimeoutError])
def test_without_a_cluster(
    settings: Settings, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise kind("nobody listens")

    deploying = ModuleType(DEPLOYING)
    deploying.Cluster = refuse  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, DEPLOYING, deploying)
    expected = r"no Ray cluster to draw in: nobody listens; RAY_ADDRESS .* RAY_AUTH_MODE=token"
    with pytest.raises(ValueError, match=expected):
        serve(settings)


def test_replicas_that_would_wait_for_ever_are_told_of() -> None:
    lacking = pytest.importorskip(DEPLOYING, reason="Ray is not installed").lacking
    two = Settings(cluster=True, min_replicas=2, max_replicas=4, replica_cpus=1.5)
    assert lacking(two, {"CPU": 3.0}) == ""
    assert lacking(two, {"CPU": 2.0}) == "3 CPUs where 2 are free"
    gpus = Settings(cluster=True, replica_cpus=1, replica_gpus=0.5)
    assert lacking(gpus, {}) == "1 CPUs where 0 are free and 0.5 GPUs where 0 are free"


def test_a_replica_with_other_weights_refuses_to_draw(tmp_path: Path) -> None:
    digest = load_checkpoint(save_tiny(tmp_path, "theirs")).digest
    fields = {"weights": tmp_path, "backend": "reference", "slots": 2}
    Replica("theirs", digest, fields, PROGRAM)._engine.close(0.0)
    other = tiny_model(GREY)
    other.head.predictor.bias.data += 1e-3
    with pytest.raises(CheckpointError, match=r"weights of theirs in .* are not those of the en"):
        Replica("theirs", Checkpoint("theirs", other).digest, fields, PROGRAM)
    with pytest.raises(RuntimeError, match=r"has Scanline 0.*, and the entrance 9\.9\.9"):
        Replica("theirs", digest, fields, "9.9.9 of another day")


def test_a_program_is_the_code_the_weights_and_what_replicas_heed() -> None:
    deploying = pytest.importorskip(DEPLOYING, reason="Ray is not installed")
    model = Checkpoint("tiny", tiny_model(GREY))

    def program(checkpoint: Checkpoint = model, **changes: Any) -> str:
        named: str = deploying.program_of(checkpoint, Settings(cluster=True, **changes))
        return named

    assert program().startswith(f"{__version__} ")
    assert program() == program(port=9000, max_waiting=9000, api_key="x")  # the entrance's
    other = tiny_model(GREY)
    other.head.predictor.bias.data += 1e-3
    others = [program(Checkpoint("tiny", other)), program(slots=3), program(max_replicas=2)]
    assert len({program(), *others}) == 4
