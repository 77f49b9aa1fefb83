"""Tests of tables 1 and 2."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scanline.model.config import ModelConfig
from scanline.model.paper import image_tables
from scanline.model.paper.image_tables import TABLE1
from scanline.model.paper.report import Report
from scanline.model.training.train_state import TrainState
from tests.dataset_files import write_mnist
from tests.model.paper.fixtures import CPU, NETWORK

TABLE = image_tables.ImageTableSettings(
    data="mnist", n_layers=1, n_heads=2, d_model=16, crop=8, training_seconds=0.05,
    test_images=3, batch=2, positions=2, stateful_batches=(1, 2), recomputed_batches=(1,),
)  # fmt: skip


def small_paper(_: image_tables.ImageTableSettings) -> ModelConfig:
    return replace(NETWORK, channels=1, height=8, width=8, d_model=32)


def test_table_trains_every_kind_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mnist(tmp_path / "data" / "mnist")
    report = Report(tmp_path / "out", "table1", {})
    monkeypatch.setattr(image_tables.ImageTableSettings, "timed_network", property(small_paper))
    made = dict(TABLE1.rows(TABLE, report, tmp_path / "data", CPU))
    assert [key for key in made if key.startswith("train")] == [
        "train softmax", "train lsh-1", "train lsh-4", "train linear",
    ]  # fmt: skip
    row = report.row("train lsh-1", made["train lsh-1"])
    assert row["images"] == 3
    assert row["images_seen"] == 2 * row["steps"]
    assert 1 < row["bits_per_dim"] < 20
    pace = report.rows["pace lsh-1"]["seconds"]
    assert row["steps"] == max(1, round(0.05 / pace))
    weights = tmp_path / "out" / "table1" / "lsh-1" / "lsh-1.safetensors"
    before = weights.stat().st_mtime_ns
    again = made["train lsh-1"]()  # the run is complete, so nothing is trained
    assert again == row
    assert weights.stat().st_mtime_ns == before
    drawn = report.row("draw linear 2", made["draw linear 2"])
    assert drawn["batch"] == 2


def test_step_time_is_measured_with_settings_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step takes 0.2 seconds of a fake clock, on a CPU with fast bf16."""
    write_mnist(tmp_path / "data" / "mnist")
    report = Report(tmp_path / "out", "table1", {})
    now, taken = 0.0, []
    right = TrainState.take_step

    def take_step(self: TrainState, *data: Any) -> float:
        nonlocal now
        now += 0.2
        taken.append((self, self.bf16, self.config))
        return right(self, *data)

    monkeypatch.setattr("scanline.model.training.train_state.bf16_is_fast", lambda _: True)
    monkeypatch.setattr("scanline.model.paper.report.clock", lambda _: now)
    monkeypatch.setattr(TrainState, "take_step", take_step)
    table = replace(TABLE, training_seconds=0.8)
    made = dict(TABLE1.rows(table, report, tmp_path / "data", CPU))
    assert report.row("train linear", made["train linear"])["steps"] == 4
    assert report.rows["pace linear"]["seconds"] == pytest.approx(0.2)
    states = [train_state for train_state, *_ in taken]
    assert states[-4:] == 4 * [states[-1]]
    assert states[:-4] == (len(states) - 4) * [states[0]]
    assert states[0] is not states[-1]
    assert all(bf16 for _, bf16, _ in taken)
    configs = [replace(config, steps=4, warmup=0) for *_, config in taken]
    assert configs == len(configs) * [configs[-1]]


def test_run_of_deleted_report_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mnist(tmp_path / "data" / "mnist")
    monkeypatch.setattr(image_tables, "TRAINED", ("linear",))
    monkeypatch.setattr(image_tables.ImageTableSettings, "timed_network", property(small_paper))

    def made(report: Report) -> dict[str, Any]:
        return dict(TABLE1.rows(TABLE, report, tmp_path / "data", CPU))

    report = Report(tmp_path / "out", "table1", {})
    report.row("train linear", made(report)["train linear"])
    made(Report(tmp_path / "out", "table1", {}))  # the same report: accepted
    run = tmp_path / "out" / "table1" / "linear"
    before = {path: path.read_bytes() for path in run.iterdir()}
    report.path.unlink()
    with pytest.raises(ValueError, match=r"linear holds a training run .* delete that folder"):
        made(Report(tmp_path / "out", "table1", {}))
    assert {path: path.read_bytes() for path in run.iterdir()} == before
