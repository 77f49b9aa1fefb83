"""Tests of ``scanline paper``: tables, plots, and the generated page."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import pytest
from PIL import Image

from scanline.model.paper.copy_task import FIGURE2
from scanline.model.paper.experiment import Mode
from scanline.model.paper.image_tables import TABLE1
from scanline.model.paper.page import OTHER_MACHINES, render_page
from scanline.model.paper.report import Report
from scanline.model.paper.runner import EXPERIMENTS
from scanline.model.paper.scaling import FIGURE1
from tests.conftest import ROOT
from tests.model.paper.fixtures import SMALL, TASK, copied, drawn, lengths, recognized, trained
from tests.service.cli.command_line import run_command

RESULTS = ROOT / "model" / "paper" / "results"


def test_commands_measure_units_and_write_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    for one, settings in ((FIGURE1, SMALL), (FIGURE2, replace(TASK, seeds=2))):
        monkeypatch.setitem(one.presets, "quick", settings)
    units = ("--unit", "linear", "--unit", "softmax")
    for name in ("figure1", "figure2"):
        command = ("paper", name, "--quick", *units, "--out", tmp_path)
        assert run_command(*command) == 0
        home = tmp_path / "quick" / name
        reports = [json.loads((home / f"{unit}.json").read_text()) for unit in units[1::2]]
        rows = {key: row for report in reports for key, row in report["rows"].items()}
        out = capsys.readouterr().out
        assert EXPERIMENTS[name].table(rows) in out
        assert out.count("\nfinished: ") == 2
        before = (home / "linear.json").read_bytes()
        assert run_command(*command) == 0
        assert (home / "linear.json").read_bytes() == before
        capsys.readouterr()
    monkeypatch.setitem(FIGURE1.presets, "quick", replace(SMALL, n_heads=1))
    assert run_command("paper", "figure1", "--quick", "--out", tmp_path) == 1
    assert "holds rows of other settings" in capsys.readouterr().err
    assert run_command("paper", "figure1", "--quick", "--full", "--out", tmp_path) == 2
    assert "choose one of --quick and --full" in capsys.readouterr().err

    assert (
        run_command("paper", "page", "--results", tmp_path, "--to", tmp_path / "docs/paper.md") == 0
    )
    page = (tmp_path / "docs/paper.md").read_text()
    for name in ("figure1", "figure2"):
        assert f"](../{name}.png)" in page
        with Image.open(tmp_path / f"{name}.png") as plot:
            assert min(plot.size) > 300
    assert "## Table 1: MNIST\n\nNot measured in the default mode yet: `linear`" in page
    assert run_command("paper", "page", "--results", tmp_path / "none") == 1
    assert "no reports in" in capsys.readouterr().err


def write(
    folder: Path, name: str, rows: dict[str, dict[str, Any]], mode: Mode = "default",
    finish: bool = True,
) -> None:  # fmt: skip
    """Write each row as the report of a unit."""
    for key, row in rows.items():
        unit = row.get("kind") or f"{row['device']}-{row['data']}-{row['method']}"
        settings = asdict(EXPERIMENTS[name].settings(mode, None))
        report = Report(folder / mode / name, unit, settings)
        report.measure(key, lambda row=row: row)  # type: ignore[misc]
        if finish:
            report.finish()


def test_every_experiment_is_plotted_and_shown(tmp_path: Path) -> None:
    write(tmp_path, "figure1", lengths("softmax-matrix", 1.95), finish=False)
    write(tmp_path, "figure2", copied("linear", 0.2))
    write(tmp_path, "table1", trained("linear", 1.0) | trained("softmax", 1.01))
    write(tmp_path, "table2", trained("linear", 3.0))
    write(tmp_path, "table3", recognized("linear", 0.08))
    write(tmp_path, "supplement", drawn("mnist", "linear", 5.0))
    pytest.importorskip("matplotlib")
    assert run_command("paper", "page", "--results", tmp_path, "--to", tmp_path / "page.md") == 0
    page = (tmp_path / "page.md").read_text()
    for name, experiment in EXPERIMENTS.items():
        assert f"## {experiment.title}" in page
        assert f"**default**: `scanline paper {name}`. " in page
        with Image.open(tmp_path / f"{name}.png") as plot:
            assert min(plot.size) > 300
    assert "| MNIST: linear has almost the same bits/dim as softmax |" in page
    assert (
        "| 0.99 (0.985 to 0.996): linear 1.000, softmax 1.010 after 8,000 images, one seed "
        "| reproduced |" in page
    )
    assert "[^summaries]: " in page
    verdicts = page.split("## The paper's claims")[1]
    reproduced = verdicts.count("| reproduced |")
    tested = reproduced + verdicts.count("| **not reproduced** |")
    assert reproduced >= 3
    assert "| Figure 2: copying | – | – | – | 2 |" in page
    assert f"**{reproduced} of the {tested} claims tested here are reproduced" in page


def test_claims_not_reproduced_are_listed_with_their_reason(tmp_path: Path) -> None:
    for data in ("mnist", "cifar10"):
        write(tmp_path, "supplement", drawn(data, "linear", 1.0) | drawn(data, "softmax", 2.0))
    page = render_page(tmp_path, tmp_path)
    assert "Those tested were measured in the default mode.\n" in page
    assert (
        "\n- *MNIST: linear draws more than 300 times as many images/s as softmax*; "
        "*CIFAR-10: linear draws more than 4,000 times as many images/s as softmax*: "
        "large batches speed" in page
    )
    table = page.split("## The paper's claims")[1]
    assert "large batches speed" not in table
    assert "times as fast as `softmax`" in table


def test_quick_rows_are_shown_only_for_units_without_default_rows(tmp_path: Path) -> None:
    write(tmp_path, "table1", trained("linear", 1.0))
    write(tmp_path, "table1", trained("linear", 7.0) | trained("softmax", 8.0), "quick")
    page = render_page(tmp_path, tmp_path)
    default, quick = page.index("**default**: `scanline paper table1`"), page.index("**quick**")
    assert default < page.index("| linear | 0.644 | 1.000") < quick < page.index("| softmax |")
    assert "7.000" not in page
    assert "in the default mode yet: `softmax`, `lsh-1`," in page
    assert "`scanline paper table1 --unit softmax --out model/paper/results`" in page


def test_page_names_machine_date_and_training_time_of_units(tmp_path: Path) -> None:
    write(tmp_path, "table1", trained("linear", 1.0))
    write(tmp_path, "table1", trained("softmax", 1.0, seconds=700.0), finish=False)
    page = render_page(tmp_path, tmp_path)
    report = json.loads((tmp_path / "default" / "table1" / "linear.json").read_text())
    machine = report["hardware"]
    line = next(line for line in page.splitlines() if line.startswith("- `linear` (1,200 s"))
    assert "Numbers of unfinished trainings" not in page
    unit = Report(
        tmp_path / "default" / "table1", "softmax", asdict(TABLE1.settings("default", None))
    )
    unit.publish("train softmax", unit.rows["train softmax"])
    assert "Numbers of unfinished trainings" in render_page(tmp_path, tmp_path)
    assert line.startswith(
        "- `linear` (1,200 s of training), `softmax` (700 s of training, unfinished): "
        f"{machine['cpu']} ({machine['isa']})"
    )
    assert line.endswith(f"PyTorch {machine['torch']}, {report['date']}")
    assert OTHER_MACHINES not in page
    noted = json.loads(unit.path.read_text()) | {
        "note": "on a boat",
        "hardware": machine | {"cpu": "other"},
    }
    unit.path.write_text(json.dumps(noted))
    page = render_page(tmp_path, tmp_path)
    assert "- `softmax` (700 s of training, unfinished): other" in page
    assert f"{report['date']}; on a boat\n" in page
    assert line.replace(", `softmax` (700 s of training, unfinished)", "") in page
    assert OTHER_MACHINES in page


def test_committed_page_is_generated_from_committed_results() -> None:
    assert (ROOT / "docs/paper.md").read_text() == render_page(RESULTS, ROOT / "docs")


def test_committed_results_have_the_present_settings() -> None:
    """Otherwise a unit could neither be continued nor compared with new ones."""
    paths = sorted(RESULTS.glob("*/*/*.json"))
    assert len(paths) > 20
    for path in paths:
        mode, name = path.parts[-3:-1]
        settings = EXPERIMENTS[name].presets[cast(Mode, mode)]
        assert json.loads(path.read_text())["settings"] == json.loads(json.dumps(asdict(settings)))
