"""Tests of runs: choice of network and folder, execution and final report."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scanline.model.checkpoint import CheckpointError, load_checkpoint
from scanline.model.config import PRESETS
from scanline.model.data.dataset import Dataset
from scanline.model.training import run as run_module
from scanline.model.training.config import TrainingConfig
from scanline.model.training.datasets import load_test_data
from scanline.model.training.resume import weights_path
from scanline.model.training.run import (
    NetworkOverrides,
    Run,
    check_resume_options,
    choose_network,
    choose_run_folder,
    overfitting_report,
)
from tests.conftest import tiny_config
from tests.service.fixtures import save_tiny

load_test_data.__test__ = False  # type: ignore[attr-defined]  # pytest takes it for a test


def of_shape(*shape: int, classes: tuple[str, ...] = ()) -> Dataset:
    return Dataset("images", np.zeros((1, *shape), np.uint8), None, classes)


def test_network_is_preset_or_closest_to_data() -> None:
    assert choose_network("cifar10-paper", of_shape(32, 32, 3)) == PRESETS["cifar10-paper"]
    grey = choose_network(None, of_shape(9, 7, 1, classes=("a", "b")))
    assert (grey.height, grey.width, grey.channels, grey.classes) == (9, 7, 1, ("a", "b"))
    assert (grey.d_model, grey.head) == (PRESETS["mnist"].d_model, PRESETS["mnist"].head)
    colour = choose_network(None, of_shape(9, 7, 3))
    assert (colour.channels, colour.head, colour.n_layers) == (3, PRESETS["cifar10"].head, 4)
    changed = choose_network(
        "mnist", of_shape(28, 28, 1), NetworkOverrides(layers=3, width=64, heads=2)
    )
    assert (changed.n_layers, changed.d_model, changed.d_ff, changed.n_heads) == (3, 64, 256, 2)


def test_network_has_sizes_of_checkpoint_to_start_from(tmp_path: Path) -> None:
    small = replace(PRESETS["mnist"], n_layers=2, n_heads=2, d_model=16, d_ff=24)
    path = save_tiny(tmp_path, config=small)
    resumed = choose_network("mnist", of_shape(28, 28, 1), start_from=path)
    assert (resumed.n_layers, resumed.d_model, resumed.d_ff) == (
        small.n_layers,
        small.d_model,
        small.d_ff,
    )
    assert resumed.classes == PRESETS["mnist"].classes
    deeper = choose_network(
        "mnist", of_shape(28, 28, 1), NetworkOverrides(layers=5), start_from=path
    )
    assert deeper == replace(resumed, n_layers=5)
    relu = replace(small, feature_map="relu")
    other = choose_network(
        "mnist", of_shape(28, 28, 1), start_from=save_tiny(tmp_path, "b", config=relu)
    )
    assert (other.attention, other.feature_map) == ("linear", "relu")
    softmax = replace(small, attention="softmax")
    other = choose_network(
        "mnist", of_shape(28, 28, 1), start_from=save_tiny(tmp_path, "c", config=softmax)
    )
    assert other.attention == "softmax"
    with pytest.raises(CheckpointError, match=r"another network \(d_model, d_ff\); start from"):
        choose_network("mnist", of_shape(28, 28, 1), NetworkOverrides(width=24), start_from=path)


def test_resumed_network_must_match_architecture_of_preset() -> None:
    digits = of_shape(28, 28, 1)
    older = replace(PRESETS["mnist"], short_conv="none", n_layers=2)  # as an older preset
    assert choose_network("mnist", digits, resumed=older) == older
    assert choose_network(None, digits, resumed=older) == older
    with pytest.raises(ValueError, match=r"another network than mnist-paper \(input, order, head,"):
        choose_network("mnist-paper", digits, resumed=older)


def test_choose_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert choose_run_folder(None, "mnist", None, resume=False) == Path("runs/mnist")
    assert choose_run_folder(None, None, Path("my/cats"), resume=False) == Path("runs/cats")
    for images, out in ((Path(), None), (tmp_path, Path("here")), (Path("here"), Path("here"))):
        with pytest.raises(ValueError, match=r"lies in .*: choose another folder with --out"):
            choose_run_folder(out, None, images, resume=False)
    assert choose_run_folder(Path("here"), "mnist", None, resume=False) == Path("here")
    with pytest.raises(ValueError, match="no run to resume in here"):
        choose_run_folder(Path("here"), "mnist", None, resume=True)
    Path("here").mkdir()
    Path("here/training.pt").touch()
    assert choose_run_folder(Path("here"), "mnist", None, resume=True) == Path("here")
    with pytest.raises(ValueError, match="add --resume"):
        choose_run_folder(Path("here"), "mnist", None, resume=False)


def test_weights_are_named_after_folder(tmp_path: Path) -> None:
    """Names that are not UTF-8 are rejected and leading dots removed: such files are not served."""
    with pytest.raises(ValueError, match=r"not UTF-8.*: choose another folder with --out"):
        choose_run_folder(Path(os.fsdecode(b"runs/caf\xe9")), "mnist", None, resume=False)
    assert weights_path(tmp_path / ".hidden", {}) == tmp_path / ".hidden" / "hidden.safetensors"
    assert weights_path(Path("/"), {}).name == "model.safetensors"


def test_weights_without_state_are_not_overwritten(tmp_path: Path) -> None:
    """A user deleted ``training.pt``."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.safetensors").touch()
    with pytest.raises(
        ValueError, match="no run to resume: choose another folder with --out"
    ) as refused:
        choose_run_folder(folder, "mnist", None, resume=False)
    assert f"--from {folder / 'run.safetensors'}" in str(refused.value)
    with pytest.raises(ValueError, match="no run to resume"):
        choose_run_folder(folder, "mnist", None, resume=True)


def test_run_killed_before_first_checkpoint_is_restarted(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "log.jsonl").write_text('{"step": 1, "bits_per_dim": 9.0}\n{"step"')
    assert choose_run_folder(folder, "mnist", None, resume=False) == folder
    assert "done" in execute_run(folder)
    lines = (folder / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]
    assert "9.0" in (folder / "log-before.jsonl").read_text()


@pytest.mark.parametrize("name", ["file", "file/run"])
def test_run_folder_must_not_be_a_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="lies in one: choose another folder with --out"):
        choose_run_folder(tmp_path / name, "mnist", None, resume=False)


def test_deleted_weights_are_written_again(tmp_path: Path) -> None:
    execute_run(tmp_path / "run")
    weights = tmp_path / "run" / "run.safetensors"
    before = load_checkpoint(weights).model.state_dict()
    weights.unlink()
    assert "done" in execute_run(tmp_path / "run", resume=True)
    after = load_checkpoint(weights)
    assert after.facts["steps"] == 2
    assert all(torch.equal(one, before[name]) for name, one in after.model.state_dict().items())


def execute_run(folder: Path, **options: Any) -> str:
    """Execute a run of two steps on black images."""
    training_config = TrainingConfig(steps=2, batch=4, precision="fp32")
    black = Dataset("black", np.zeros((8, 5, 4, 1), np.uint8), None, ())
    resume = options.get("resume", False)
    run = Run(
        network=tiny_config(n_layers=1),
        training_config=training_config,
        folder=folder,
        resume=resume,
    )
    after = options.get("after", lambda network, folder: None)
    return run.execute(black, None, after, 1)


def test_run_stopped_at_its_end_is_done(tmp_path: Path) -> None:
    summary = execute_run(tmp_path / "run", after=lambda *_: os.kill(os.getpid(), signal.SIGINT))
    assert summary.startswith("done: 2 of 2 steps")


def test_number_of_images_is_printed_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    execute_run(tmp_path / "run")
    assert capsys.readouterr().err.count("8 images, 0 held out\n") == 1
    classes = of_shape(5, 4, 1, classes=("a", "b"))
    assert run_module._describe_data(classes, classes) == "2 images in 2 classes, 1 held out"


class ClosedPipe(io.StringIO):
    """A pipe whose reader has ended."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def test_run_survives_closed_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends ``tee`` at once, but the run only after its step."""
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(sys, stream, ClosedPipe())
    summary = execute_run(tmp_path / "run", after=lambda *_: os.kill(os.getpid(), signal.SIGINT))
    assert summary.startswith("done: 2 of 2 steps")
    assert (tmp_path / "run" / "training.pt").exists()


def test_two_runs_cannot_share_a_folder(tmp_path: Path) -> None:
    def another(*_: object) -> None:
        with pytest.raises(ValueError, match="another run is using"):
            execute_run(tmp_path / "run")

    assert execute_run(tmp_path / "run", after=another).startswith("done: 2 of 2 steps")
    with pytest.raises(ValueError, match="already holds a run"):  # a run that ended meanwhile
        execute_run(tmp_path / "run")


def test_run_stopped_before_first_step_saves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def interrupted(*_: object) -> Iterator[torch.device]:
        os.kill(os.getpid(), signal.SIGINT)  # while the other processes start
        yield torch.device("cpu")

    monkeypatch.setattr(run_module, "process_group", interrupted)
    summary = execute_run(tmp_path / "run")
    assert summary == "stopped before the first step: nothing was saved"
    assert list((tmp_path / "run").iterdir()) == []
    assert choose_run_folder(tmp_path / "run", None, None, resume=False) == tmp_path / "run"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((None, False, Path("a.safetensors")), "leave one of them out"),
        ((6, False, None), "have 5 pixels a side: leave out --size"),
        ((None, True, None), "leave out --grey"),
        ((None, False, None, 5, 3), "holds out 3 images: leave out --hold-out"),
    ],
)
def test_options_that_contradict_resumed_run_are_rejected(
    options: tuple[Any, ...], message: str
) -> None:
    resumed = tiny_config(channels=3)
    check_resume_options(resumed, 5, False, None)
    check_resume_options(tiny_config(), None, True, None)
    for hold_out, held_out in ((None, 3), (3, None), (3, 3)):
        check_resume_options(resumed, None, False, None, hold_out, held_out)
    with pytest.raises(ValueError, match=message):
        check_resume_options(resumed, *options)


def test_report_of_run_that_learned_nothing() -> None:
    report = overfitting_report([{"step": 50, "bits_per_dim": 29842385.0954}], 8.0)
    assert "has learned nothing" in report
    assert "at a lower --learning-rate" in report
    started = [{"step": 3, "bits_per_dim": 9.1}, {"step": 6, "bits_per_dim": 9.0}]
    assert "learned little so far" in overfitting_report(started, 9.0)
    assert "train for more --steps" in overfitting_report(started[:1], 9.0)
    worse = [{"step": 50, "bits_per_dim": 2.9}, {"step": 100, "bits_per_dim": 9.0}]
    assert "the network has become worse" in overfitting_report(worse, 9.0)
    assert "the network overfits" in overfitting_report(worse, 1.0)


def test_report_of_overfitted_run() -> None:
    def validated(*bits: float) -> list[dict[str, float]]:
        return [{"step": 1000 * (j + 1), "bits_per_dim": one} for j, one in enumerate(bits)]

    for good in ([], validated(3.0), validated(1.5, 1.4, 1.44)):
        assert overfitting_report(good, 1.3) == ""
    assert overfitting_report(validated(1.0, 3.0), math.nan) == ""  # no step was taken
    for trained in (1.44, 1.3):
        report = overfitting_report(validated(1.5, 1.4, 1.46, 2.0), trained)
        assert "the network overfits" in report
    assert "1.400 bits/dim at step 2,000, 2.000 now" in report
    assert report.endswith("--steps 2000")
    diverged = overfitting_report(validated(1.5, 1.4, 1.46, 2.0), 2.1)
    assert "the network has become worse" in diverged
    assert "at a lower --learning-rate" in diverged
