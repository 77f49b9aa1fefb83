"""Tests of running units of experiments."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from scanline.model.paper.experiment import MODES, Experiment, Rows, UnitRun
from scanline.model.paper.latency import SUPPLEMENT
from scanline.model.paper.report import Report, Row
from scanline.model.paper.runner import EXPERIMENTS, run_units
from scanline.model.paper.scaling import FIGURE1, KINDS, ScalingSettings
from tests.model.paper.fixtures import SMALL, unit_run


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=list(EXPERIMENTS))
def test_units_have_different_names_and_row_keys(
    experiment: Experiment[Any], tmp_path: Path
) -> None:
    assert set(experiment.presets) == set(MODES)
    for mode in MODES:
        settings = experiment.settings(mode, None)
        units = experiment.units(settings)
        assert units
        assert len(units) == len(set(units))
        keys: list[str] = []
        for unit in units:
            run = unit_run(unit, settings, tmp_path / mode / experiment.name)
            keys += [key for key, _ in experiment.rows(run)]
        assert len(keys) == len(set(keys)) >= len(units)
        assert json.dumps(asdict(settings))


def test_units_are_resumed_row_by_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FIGURE1.presets, "default", SMALL)
    made: list[str] = []

    def measure(kind: str, length: int, *rest: object) -> Row:
        made.append(f"{kind} {length}")
        return {"kind": kind}

    monkeypatch.setattr("scanline.model.paper.scaling.measure", measure)

    def run(rows: int | None) -> list[Report]:
        return run_units(FIGURE1, tmp_path, ("linear", "softmax"), mode="default", rows=rows)

    assert [report.complete for report in run(2)] == [False]
    assert [report.complete for report in run(2)] == [True, False]
    assert made == ["linear 16", "linear 32", "linear 64", "softmax 16"]
    assert [report.complete for report in run(None)] == [True, True]
    assert made[4:] == ["softmax 32", "softmax 64"]
    run(None)
    assert len(made) == 6
    home = tmp_path / "default" / "figure1"
    assert sorted(path.name for path in home.iterdir()) == ["linear.json", "softmax.json"]


def test_unknown_unit_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="figure1 has no unit lsh-2: choose linear, linear-"):
        run_units(FIGURE1, tmp_path, ("linear", "lsh-2"), mode="quick")
    assert not (tmp_path / "quick").exists()


def test_units_that_need_a_missing_package_are_refused_or_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(FIGURE1, "rows", lambda *_: iter([("a", dict)]))
    peer = "fast-transformers-linear"
    assert peer in FIGURE1.units(SMALL)
    with pytest.raises(ValueError, match=f"{peer} cannot be .* package pytorch-fast-transformers"):
        run_units(FIGURE1, tmp_path, ("linear", peer), mode="quick")
    assert not (tmp_path / "quick").exists()
    reports = run_units(FIGURE1, tmp_path, (), mode="quick")
    assert [report.unit for report in reports] == [*KINDS]


def test_units_of_a_gpu_are_passed_over_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert SUPPLEMENT.missing("cuda-mnist-linear") == "an NVIDIA GPU"
    assert SUPPLEMENT.missing("cpu-mnist-linear") is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert SUPPLEMENT.missing("cuda-mnist-linear") is None


def test_unit_is_locked_while_it_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes would overwrite each other's rows."""

    def rows(run: UnitRun[ScalingSettings]) -> Rows:
        with pytest.raises(ValueError, match=r"another run is using .*figure1.linear"):
            run_units(FIGURE1, tmp_path, (run.unit,), mode="quick")
        yield "a", dict

    monkeypatch.setattr(FIGURE1, "rows", rows)
    (report,) = run_units(FIGURE1, tmp_path, ("linear",), mode="quick")
    assert report.complete
    home = tmp_path / "quick" / "figure1"
    assert [path.name for path in home.iterdir()] == ["linear.json"]
