"""Tests of table 3."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

from scanline.model.paper.speech.corpus import read_corpus
from scanline.model.paper.speech.encoder import KINDS
from scanline.model.paper.speech.table import TABLE3, EncoderTraining
from tests.model.paper.speech.fixtures import CPU, TASK, write_speech
from tests.service.cli.command_line import run_command


def test_table_of_corpus_folder_is_trained_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(TABLE3, "quick", replace(TASK, training_seconds=10))
    monkeypatch.setattr(
        "scanline.model.paper.speech.table.timed", lambda run, device, repeats: run() or 1.0
    )
    folder = write_speech(tmp_path / "speech")
    command = ("paper", "table3", "--quick", "--out", tmp_path, "--speech", folder)
    assert run_command(*command) == 0
    report = json.loads((tmp_path / "table3.json").read_text())
    rows = report["rows"]
    assert report["complete"]
    assert rows["data"]["phonemes"] == 4
    assert {kind for kind in KINDS if rows[f"train {kind}"]["epochs"] == 10} == {*KINDS}
    for kind in KINDS:
        assert rows[f"train {kind}"]["error_rate"] < 0.2, kind  # of four phonemes
    assert TABLE3.table(rows) in capsys.readouterr().out
    assert "Measured on the corpus `speech`." in TABLE3.caption(report["settings"])
    with Image.open(tmp_path / "table3.png") as plot:
        assert min(plot.size) > 300
    before = (tmp_path / "table3.json").read_bytes()
    assert run_command(*command) == 0
    assert (tmp_path / "table3.json").read_bytes() == before
    assert run_command(*command[:-1], write_speech(tmp_path / "other", 2, 2)) == 1
    assert "holds rows of other settings" in capsys.readouterr().err


def test_training_is_deterministic(tmp_path: Path) -> None:
    corpus = read_corpus(write_speech(tmp_path), 2)
    weights = []
    for _ in range(2):
        training = EncoderTraining("linear", TASK, corpus, CPU)
        training.epoch()
        weights.append(nn.utils.parameters_to_vector(training.encoder.parameters()))
    assert torch.equal(*weights)


def result_rows(**error_rates: float) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for seconds, (kind, rate) in enumerate(error_rates.items(), 1):
        kind = kind.replace("_", "-")
        rows[f"epoch {kind}"] = {"kind": kind, "seconds": float(seconds)}
        rows[f"train {kind}"] = {"kind": kind, "error_rate": rate}
    return rows


def test_verdicts_follow_rows_of_table_3() -> None:
    rows = result_rows(linear=0.02, softmax=0.01, bi_lstm=0.05, lsh_4=0.2)
    verdicts = [*TABLE3.verdicts(rows)]
    assert [verdict.holds for verdict in verdicts] == [True, True, True]
    assert verdicts[0].claim.endswith("than lsh-4 (8.08 % : 9.33 %)")
    assert verdicts[0].found == "2.00 % : 20.00 %"
    assert verdicts[2].found == "bi-lstm 3 s, softmax 2 s, lsh-4 4 s, linear 1 s"
    rows = result_rows(softmax=0.01, linear=0.06, bi_lstm=0.05, lsh_4=0.2)
    assert [verdict.holds for verdict in TABLE3.verdicts(rows)] == [True, False, False]
