"""Tests of the reports of experiments."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
import torch

from scanline.model.paper.report import Report, read
from scanline.model.training.run_lock import run_lock


def test_report_keeps_its_rows_across_interruptions(tmp_path: Path) -> None:
    report = Report(tmp_path, "linear", {"quick": True, "sizes": (1, 2)})
    assert report.measure("a", lambda: {"kind": "a"}) == {"kind": "a"}
    with pytest.raises(KeyboardInterrupt):
        report.measure("b", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    again = Report(tmp_path, "linear", {"quick": True, "sizes": (1, 2)})
    assert again.has("a")
    assert not again.has("b")
    again.measure("b", lambda: {"kind": "b"})
    saved = read(tmp_path / "linear.json")
    assert saved["rows"] == {"a": {"kind": "a"}, "b": {"kind": "b"}}
    assert saved["hardware"]["threads"] == torch.get_num_threads()
    assert not saved["complete"]
    again.finish()
    whole = read(tmp_path / "linear.json")
    assert whole["complete"]
    assert datetime.date.fromisoformat(whole["date"]) <= datetime.datetime.now(datetime.UTC).date()


def test_unfinished_row_is_saved_and_measured_again(tmp_path: Path) -> None:
    report = Report(tmp_path, "linear", {})
    report.publish("a", {"loss": 2})
    again = Report(tmp_path, "linear", {})
    assert again.rows == {"a": {"loss": 2, "unfinished": True}}
    assert not again.has("a")
    assert again.measure("a", lambda: {"loss": 1}) == {"loss": 1}
    assert Report(tmp_path, "linear", {}).has("a")


def test_complete_report_of_another_machine_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for unit in ("complete", "incomplete"):
        report = Report(tmp_path, unit, {})
        report.measure("a", lambda: {"loss": 1})
    Report(tmp_path, "complete", {}).finish()
    before = (tmp_path / "complete.json").read_bytes()
    monkeypatch.setattr("scanline.model.paper.report.hardware", lambda: {"cpu": "another"})
    kept = Report(tmp_path, "complete", {})
    kept.finish()
    assert kept.rows == {"a": {"loss": 1}}
    assert (tmp_path / "complete.json").read_bytes() == before
    with pytest.raises(ValueError, match="rows of other hardware"):
        Report(tmp_path, "incomplete", {})


def test_report_rejects_rows_that_cannot_be_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Report(tmp_path, "linear", {"quick": True}).measure("a", dict)
    with pytest.raises(ValueError, match=r"linear.json holds rows of other settings: choose"):
        Report(tmp_path, "linear", {"quick": False})
    with (
        run_lock(tmp_path / "linear"),  # the folder holds the lock file only
        pytest.raises(ValueError, match=r"or delete it$"),
    ):
        Report(tmp_path, "linear", {"quick": False})
    (tmp_path / "linear" / "0").mkdir()
    with pytest.raises(ValueError, match=r"or delete it and .*linear$"):
        Report(tmp_path, "linear", {"quick": False})
    monkeypatch.setattr("scanline.model.paper.report.hardware", lambda: {"cpu": "another"})
    with pytest.raises(ValueError, match="rows of other hardware"):
        Report(tmp_path, "linear", {"quick": True})
    wrong = '{"unit": "a", "rows": 1, "settings": {}, "hardware": {}, "date": "", "complete": true}'
    foreign = '{"rows": {}, "settings": {}, "hardware": {}, "complete": true}'
    for text in ("{", "[]", '{"rows": {}}', wrong, foreign):
        (tmp_path / "table1.json").write_text(text)
        with pytest.raises(ValueError, match=r"table1.json is not a report of"):
            Report(tmp_path, "table1", {})
