"""Tests of ``scanline paper``: tables, plots, verdicts and the generated page."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from scanline.model.paper.copy_task import FIGURE2
from scanline.model.paper.image_tables import TABLE1, best_sampling
from scanline.model.paper.page import render_page, write_page
from scanline.model.paper.report import Report
from scanline.model.paper.runner import EXPERIMENTS
from scanline.model.paper.sampling_speed import NATIVE
from scanline.model.paper.scaling import FIGURE1
from tests.conftest import ROOT
from tests.model.paper.fixtures import SMALL, TASK
from tests.service.cli.command_line import run_command

RESULTS = ROOT / "model" / "paper" / "results"


def test_commands_write_table_plot_and_report_and_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(FIGURE1, "quick", SMALL)
    monkeypatch.setattr(FIGURE2, "quick", replace(TASK, seeds=1))
    for name in ("figure1", "figure2"):
        assert run_command("paper", name, "--quick", "--out", tmp_path) == 0
        rows = json.loads((tmp_path / f"{name}.json").read_text())["rows"]
        assert EXPERIMENTS[name].table(rows) in capsys.readouterr().out
        with Image.open(tmp_path / f"{name}.png") as plot:
            assert min(plot.size) > 300
        before = (tmp_path / f"{name}.json").read_bytes()
        assert run_command("paper", name, "--quick", "--out", tmp_path) == 0
        assert (tmp_path / f"{name}.json").read_bytes() == before
    assert run_command("paper", "figure1", "--out", tmp_path) == 1
    assert "holds rows of other settings" in capsys.readouterr().err
    assert (
        run_command("paper", "page", "--results", tmp_path, "--to", tmp_path / "docs/paper.md") == 0
    )
    page = (tmp_path / "docs/paper.md").read_text()
    assert "![Figure 2: copying](../figure2.png)" in page
    assert "Table 1" not in page
    assert run_command("paper", "page", "--results", tmp_path / "none") == 1
    assert "no reports in" in capsys.readouterr().err


def timings(**powers: float) -> dict[str, dict[str, Any]]:
    rows = {}
    for kind, power in powers.items():
        for length in (512, 1024, 2048, 4096):
            row = {"kind": kind, "length": length, "seconds": 1e-6 * length**power}
            rows[f"{kind} {length}"] = row | {"bytes": 64 * length}
    return rows


def test_verdicts_follow_rows_of_figures() -> None:
    verdicts = {
        v.claim.split(" (")[0]: v for v in FIGURE1.verdicts(timings(linear=1.02, softmax=1.9))
    }
    assert verdicts["time of linear attention grows linearly"].holds
    assert verdicts["time of softmax attention grows quadratically"].found == "1.900"
    for linear, softmax in ((1.2, 1.9), (1.0, 1.5)):
        assert not all(v.holds for v in FIGURE1.verdicts(timings(linear=linear, softmax=softmax)))
    learned = {f"linear {s}": {"kind": "linear", "loss": 0.01 + s} for s in (0, 1)}
    assert [v.holds for v in FIGURE2.verdicts({"linear 0": learned["linear 0"]})] == [True]
    assert [v.holds for v in FIGURE2.verdicts(learned)] == [False]


def test_every_lsh_kind_has_a_verdict() -> None:
    rows = timings(**{"lsh-1": 1.03, "lsh-4": 1.4, "lsh-8": 1.1, "fast-transformers: lsh-1": 1.7})
    verdicts = {v.claim.split()[2]: v.holds for v in FIGURE1.verdicts(rows)}
    assert verdicts == {"lsh-1": True, "lsh-4": False, "lsh-8": True}


def drawn(**speeds: float) -> dict[str, dict[str, Any]]:
    return {
        f"draw {method} {batch}": {
            "method": method,
            "batch": batch,
            "images_per_second": speed / batch,
        }
        for method, speed in speeds.items()
        for batch in (1, 2)
    }  # fmt: skip


def test_table_uses_fastest_batch_and_judges_order() -> None:
    rest = {"softmax": 1.0, "lsh-1": 2.0, "lsh-4": 0.5}
    rows = drawn(**{"linear": 100.0, "stateful-softmax": 20.0}, **rest)
    assert best_sampling(rows)["linear"]["batch"] == 1
    (verdict,) = TABLE1.verdicts(rows)
    assert verdict.holds
    assert verdict.found == "100 : 20 : 1 : 2 : 0.5"
    assert verdict.claim.endswith("317 : 16.8 : 1 : 1.51 : 0.6)")
    (verdict,) = TABLE1.verdicts(drawn(**{"linear": 19.0, "stateful-softmax": 20.0}, **rest))
    assert not verdict.holds
    assert "| linear | 0.644 | – | – | 143 (317 ×) | 100 (100 ×) | 1 |" in TABLE1.table(rows)


def test_page_names_precision_of_native_decoder(tmp_path: Path) -> None:
    rest = {"softmax": 1.0, "lsh-1": 2.0, "lsh-4": 0.5}
    rows = drawn(**{"linear": 100.0, "stateful-softmax": 20.0, NATIVE: 200.0}, **rest)
    settings = asdict(TABLE1.quick) | {"quick": True}

    report = Report(tmp_path, "table1", settings)
    for key, row in rows.items():
        precision = {"precision": "int16"} if row["method"] == NATIVE else {}
        report.row(key, partial(dict, row | precision))
    report.finish()
    page = render_page(tmp_path, tmp_path)
    assert f"`{NATIVE}` multiplies in int16 and keeps float32 states; the other methods" in page
    assert f"| {NATIVE} (int16) | – | – |" in page


def test_page_rejects_reports_of_different_machines(tmp_path: Path) -> None:
    for name, cores in (("figure1", 1), ("figure2", 2)):
        report = {"experiment": name, "settings": {"quick": True}, "hardware": {"cores": cores}}
        whole = report | {"rows": {}, "complete": True}
        (tmp_path / f"{name}.json").write_text(json.dumps(whole))
    with pytest.raises(ValueError, match="are from different machines"):
        write_page(tmp_path, tmp_path / "docs/paper.md")


def test_page_rejects_incomplete_report(tmp_path: Path) -> None:
    report = Report(tmp_path, "figure2", asdict(FIGURE2.quick) | {"quick": True})
    report.row("linear 0", lambda: {"kind": "linear", "loss": 0.1, "losses": [1.0], "every": 20})
    with pytest.raises(ValueError, match="figure2 is incomplete: run it again"):
        render_page(tmp_path, tmp_path)
    assert not (tmp_path / "docs/paper.md").exists()


def test_committed_page_is_generated_from_committed_results() -> None:
    assert (ROOT / "docs/paper.md").read_text() == render_page(RESULTS, ROOT / "docs")
