"""Tests of reading a folder of results."""

from __future__ import annotations

from pathlib import Path

import pytest

from scanline.model.paper.report import Report
from scanline.model.paper.result_files import read_results


def write(folder: Path, unit: str, settings: int = 1) -> None:
    Report(folder, unit, {"size": settings}).measure(f"train {unit}", lambda: {"kind": unit})


def test_units_are_ordered_as_in_the_tables(tmp_path: Path) -> None:
    for unit in ("another", "linear", "softmax"):
        write(tmp_path / "default" / "table1", unit)
    write(tmp_path / "quick" / "table1", "linear", 2)
    results = read_results(tmp_path, {"table1": ["softmax", "linear", "lsh-1"], "table2": ["a"]})
    assert list(results["table1"]) == ["quick", "default"]
    measured = results["table1"]["default"]
    assert list(measured.rows) == ["train softmax", "train linear", "train another"]
    assert measured.settings == {"size": 1}
    assert results["table2"] == {}


def test_units_of_other_settings_are_rejected(tmp_path: Path) -> None:
    write(tmp_path / "default" / "table1", "linear")
    write(tmp_path / "default" / "table1", "softmax", 2)
    with pytest.raises(ValueError, match=r"softmax\.json has other settings than linear beside it"):
        read_results(tmp_path, {"table1": ["linear", "softmax"]})
