"""Tests of a run's log."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scanline.model.checkpoint import (
    load_checkpoint,
)
from scanline.model.evaluation.likelihood import evaluate
from scanline.model.training.learning_curve import read_curve
from scanline.model.training.resume import dataset_fingerprint
from scanline.model.training.stop_signal import StopSignal
from scanline.model.training.trainer import Trainer
from tests.model.training.fixtures import (
    CONFIG,
    CPU,
    MODEL,
    assert_same_bits,
    dataset,
    log_of,
    run,
    state,
    weights_of,
)


def test_log_has_a_line_per_step_and_validation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use a fake clock that advances by half a second per call."""
    clock = SimpleNamespace(perf_counter=itertools.count(step=0.5).__next__)
    monkeypatch.setattr("scanline.model.training.trainer.time", clock)
    config = replace(CONFIG, evaluate_every=4)
    trainer = run(tmp_path, config, validation=dataset(9, seed=5))
    lines = log_of(tmp_path)
    training = [line for line in lines if "bits_per_dim" in line]
    assert [line["step"] for line in training] == [1, 2, 3, 4, 5, 6]
    assert [line["images_per_second"] for line in training] == [CONFIG.batch / 0.5] * 6
    assert [line["seconds"] for line in training] == [0.5, 1, 1.5, 2, 2.5, 3]
    validations = [line for line in lines if "validation" in line]
    assert [line["step"] for line in validations] == [4, 6]
    last = evaluate(trainer.train_state.ema, dataset(9, seed=5))
    assert validations[-1]["validation"] == pytest.approx(last.bits_per_dim, abs=1e-4)
    assert validations[-1]["error"] == pytest.approx(last.standard_error, abs=1e-4)
    facts = load_checkpoint(weights_of(tmp_path)).facts
    assert [entry["step"] for entry in facts["validation"]] == [4, 6]


def test_log_of_one_held_out_image_is_standard_json(tmp_path: Path) -> None:
    run(tmp_path, validation=dataset(1, seed=5))
    assert "Infinity" not in (tmp_path / "log.jsonl").read_text()
    assert log_of(tmp_path)[-1]["error"] is None
    facts = load_checkpoint(weights_of(tmp_path)).facts
    assert facts["held_out"] == 1
    assert facts["trained_on"] == dataset_fingerprint(dataset())


def test_checkpoint_is_saved_if_log_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, opened = Trainer(MODEL, CONFIG, tmp_path / "full", CPU), Path.open

    def full(path: Path, mode: str = "r", *rest: Any, **more: Any) -> Any:
        if path.name == "log.jsonl" and mode == "a" and trainer.step == 3:
            raise OSError(28, "No space left on device")
        return opened(path, mode, *rest, **more)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(OSError, match=r"cannot write .*log\.jsonl \(No space left on device\)"):
        trainer.train(dataset(), None, StopSignal(), quiet=True)
    monkeypatch.undo()
    assert load_checkpoint(weights_of(tmp_path / "full")).facts["steps"] == 3
    resumed = run(tmp_path / "full", resume=True)
    assert_same_bits(state(resumed), state(run(tmp_path / "whole")))


def test_truncated_line_of_log_is_ignored(tmp_path: Path) -> None:
    """After a full disk, for example: the run and its log continue."""
    run(tmp_path, replace(CONFIG, steps=2))
    log = tmp_path / "log.jsonl"
    log.write_text(log.read_text()[:-20])
    run(tmp_path, replace(CONFIG, steps=4), resume=True)
    training, _ = read_curve(log)
    assert training[:, 0].tolist() == [1, 3, 4]
