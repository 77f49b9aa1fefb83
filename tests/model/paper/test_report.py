"""Tests of the reports of experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from scanline.model.paper.report import Report, read
from scanline.model.training.run_lock import run_lock


def test_report_measures_each_row_once_across_interruptions(tmp_path: Path) -> None:
    made: list[str] = []

    def make(name: str) -> dict[str, Any]:
        made.append(name)
        return {"kind": name}

    report = Report(tmp_path, "figure1", {"quick": True, "sizes": (1, 2)})
    assert report.row("a", lambda: make("a")) == {"kind": "a"}
    with pytest.raises(KeyboardInterrupt):
        report.row("b", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    again = Report(tmp_path, "figure1", {"quick": True, "sizes": (1, 2)})
    again.row("a", lambda: make("a"))
    again.row("b", lambda: make("b"))
    assert made == ["a", "b"]
    saved = read(tmp_path / "figure1.json")
    assert saved["rows"] == {"a": {"kind": "a"}, "b": {"kind": "b"}}
    assert saved["hardware"]["threads"] == torch.get_num_threads()
    assert not saved["complete"]
    again.finish()
    assert read(tmp_path / "figure1.json")["complete"]


def test_report_rejects_rows_that_cannot_be_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Report(tmp_path, "figure1", {"quick": True}).row("a", dict)
    with pytest.raises(ValueError, match=r"figure1.json holds rows of other settings: choose"):
        Report(tmp_path, "figure1", {"quick": False})
    with (
        run_lock(tmp_path / "figure1"),  # the folder holds the lock file only
        pytest.raises(ValueError, match=r"or delete it$"),
    ):
        Report(tmp_path, "figure1", {"quick": False})
    (tmp_path / "figure1" / "linear").mkdir()
    with pytest.raises(ValueError, match=r"or delete it and .*figure1$"):
        Report(tmp_path, "figure1", {"quick": False})
    monkeypatch.setattr("scanline.model.paper.report.hardware", lambda: {"cpu": "another"})
    with pytest.raises(ValueError, match="rows of other hardware"):
        Report(tmp_path, "figure1", {"quick": True})
    wrong = '{"rows": 1, "settings": {}, "hardware": {}, "complete": true}'
    foreign = '{"rows": {}, "settings": {}, "hardware": {}, "complete": true}'
    for text in ("{", "[]", '{"rows": {}}', wrong, foreign):
        (tmp_path / "table1.json").write_text(text)
        with pytest.raises(ValueError, match=r"table1.json is not a report of"):
            Report(tmp_path, "table1", {})
