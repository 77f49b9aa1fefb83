"""Tests of running experiments."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from scanline.model.paper.experiment import Experiment, Rows
from scanline.model.paper.report import Report
from scanline.model.paper.runner import EXPERIMENTS, run_experiment
from scanline.model.paper.scaling import FIGURE1
from tests.model.paper.fixtures import CPU


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=list(EXPERIMENTS))
def test_every_experiment_has_unique_row_keys(experiment: Experiment[Any], tmp_path: Path) -> None:
    for quick in (True, False):
        settings = experiment.settings(quick, None)
        report = Report(tmp_path / str(quick), experiment.name, {})
        keys = [key for key, _ in experiment.rows(settings, report, None, CPU)]
        assert len(keys) == len(set(keys)) > 5
        assert json.dumps(asdict(settings))


def test_experiment_locks_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes would overwrite each other's rows."""

    def rows(*_: object) -> Rows:
        with pytest.raises(ValueError, match=r"another run is using .*figure1"):
            run_experiment(FIGURE1, tmp_path, quick=True)
        yield "a", dict

    monkeypatch.setattr(FIGURE1, "rows", rows)
    run_experiment(FIGURE1, tmp_path, quick=True)
    assert [path.name for path in tmp_path.iterdir()] == ["figure1.json"]
