"""Tests of the execution of runs and of the final report."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scanline.model.checkpoint import load_checkpoint
from scanline.model.data.dataset import Dataset
from scanline.model.training import run as run_module
from scanline.model.training.config import TrainingConfig
from scanline.model.training.run import Run, overfitting_report
from scanline.model.training.setup import choose_run_folder
from tests.conftest import tiny_config


def test_run_killed_before_first_checkpoint_is_restarted(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "log.jsonl").write_text('{"step": 1, "bits_per_dim": 9.0}\n{"step"')
    assert choose_run_folder(folder, "mnist", None, resume=False) == folder
    assert "done" in execute_run(folder)
    lines = (folder / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]
    assert "9.0" in (folder / "log-before.jsonl").read_text()


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
        data=black,
        resume=resume,
        processes=1,
    )
    after = options.get("after", lambda network, folder: None)
    return run.execute(after)


def test_run_stopped_at_its_end_is_done(tmp_path: Path) -> None:
    summary = execute_run(tmp_path / "run", after=lambda *_: os.kill(os.getpid(), signal.SIGINT))
    assert summary.startswith("done: 2 of 2 steps")


def test_number_of_images_is_printed_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    execute_run(tmp_path / "run")
    assert capsys.readouterr().err.count("8 images, 0 held out\n") == 1
    classes = Dataset("images", np.zeros((1, 5, 4, 1), np.uint8), None, ("a", "b"))
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
