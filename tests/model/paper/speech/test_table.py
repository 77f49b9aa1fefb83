"""Tests of table 3."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from scanline.model.paper.speech import table
from scanline.model.paper.speech.corpus import read_corpus
from scanline.model.paper.speech.table import (
    TABLE3,
    EncoderTraining,
    epoch_seconds,
    error_rate,
)
from tests.model.paper.fixtures import recognized
from tests.model.paper.speech.fixtures import CPU, TASK, write_speech
from tests.service.cli.command_line import run_command


@pytest.mark.slow
def test_table_of_corpus_folder_is_trained_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(table, "PAPER_FRAMES", 60)
    monkeypatch.setattr(table, "PATIENCE", 12)
    monkeypatch.setitem(TABLE3.presets, "quick", replace(TASK, seconds=4))
    folder = write_speech(tmp_path / "speech")
    kinds = ("linear", "bi-lstm")
    units = (part for kind in kinds for part in ("--unit", kind))
    command = ("paper", "table3", "--quick", "--out", tmp_path, *units, "--speech", folder)
    assert run_command(*command) == 0
    home = tmp_path / "quick" / "table3"
    reports = {kind: json.loads((home / f"{kind}.json").read_text()) for kind in kinds}
    for kind, report in reports.items():
        row = report["rows"][f"train {kind}"]
        assert report["complete"]
        assert row["corpus"]["phonemes"] == 4
        assert row["epoch_steps"] == 6
        assert row["evaluations"][-1]["error_rate"] < 0.3, kind  # of four phonemes
    rows = {key: row for report in reports.values() for key, row in report["rows"].items()}
    assert TABLE3.table(rows) in capsys.readouterr().out
    assert "Measured on the corpus `speech`." in TABLE3.caption(reports["linear"]["settings"])
    assert run_command(*command[:-1], write_speech(tmp_path / "other", 2, 2)) == 1
    assert "holds rows of other settings" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["linear", "lsh-4"])
def test_continued_training_takes_the_same_steps(kind: str, tmp_path: Path) -> None:
    """A validation in between has no effect."""
    corpus = read_corpus(write_speech(tmp_path), 2)
    whole, first, second = (EncoderTraining(kind, TASK, corpus, CPU) for _ in range(3))
    losses = [whole.take_step() for _ in range(8)]  # over the end of an epoch of six steps
    for _ in range(4):
        first.take_step()
    second.load_state_dict(first.state_dict())
    error_rate(second.encoder.eval(), corpus.validation, TASK.batch, CPU)
    assert [second.take_step() for _ in range(4)] == losses[4:]
    weights = [nn.utils.parameters_to_vector(one.encoder.parameters()) for one in (whole, second)]
    assert torch.equal(*weights)


def test_learning_rate_is_halved_when_validation_stops_improving(tmp_path: Path) -> None:
    corpus = read_corpus(write_speech(tmp_path, 4, 1), 2)
    for kind, optimizer, rate in (
        ("linear", torch.optim.RAdam, TASK.learning_rate),
        ("bi-lstm", torch.optim.Adam, TASK.lstm_learning_rate),
    ):
        training = EncoderTraining(kind, TASK, corpus, CPU)
        assert type(training.optimizer) is optimizer
        rates = []
        for error in (0.99, 1.0, 0.95, 0.5, 0.6, 0.5, 0.4):  # the first three are fluctuations
            training.validated(error)
            rates.append(training.optimizer.param_groups[0]["lr"] / rate)
        assert rates == [1, 1, 1, 1, 0.5, 0.25, 0.25]


def test_epoch_seconds_are_between_validations() -> None:
    row = recognized("linear", 0.1, epoch=10.0)["train linear"]
    assert epoch_seconds(row) == [10.0, 10.0]
    row["evaluations"] = row["evaluations"][-1:]
    assert epoch_seconds(row) == [10.0]
    row["steps"] = 5
    assert epoch_seconds(row) == [40.0]
