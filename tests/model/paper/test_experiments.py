"""Tests of the paper's experiments: measurements, and resumption of an interrupted run."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scanline.model.config import ModelConfig
from scanline.model.decoders.native import NativeDecoder
from scanline.model.paper import copy_task, image_tables, latency, peers, sampling_speed, scaling
from scanline.model.paper.copy_task import FIGURE2
from scanline.model.paper.experiment import Experiment, Rows
from scanline.model.paper.image_tables import TABLE1
from scanline.model.paper.latency import SUPPLEMENT
from scanline.model.paper.report import Report, read
from scanline.model.paper.runner import EXPERIMENTS, run_experiment
from scanline.model.paper.scaling import FIGURE1, ScalingSettings, peak_bytes, slope
from scanline.model.training.run_lock import run_lock
from scanline.model.training.train_state import TrainState
from tests.conftest import assert_close, tiny_config
from tests.dataset_files import write_mnist

CPU = torch.device("cpu")
SMALL = ScalingSettings(shortest=2**4, longest=2**6, n_heads=2, head_size=8, repeats=1)
TASK = replace(FIGURE2.quick, length=8, d_model=32, d_ff=32, steps=40, seeds=2, batch=16)
NETWORK = tiny_config(
    input="previous", order="subpixel", channels=3, norm="post", positions="sinusoidal"
)


# --- reports --------------------------------------------------------------------------------------


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


# --- figure 1 -------------------------------------------------------------------------------------


def test_peak_bytes_is_maximum_of_allocated_memory() -> None:
    def run() -> None:
        for _ in range(3):
            first = torch.zeros(250_000)
            second = first + 1
            del first, second

    assert peak_bytes(run, CPU) == pytest.approx(2_000_000, rel=0.01)


@pytest.mark.parametrize("kind", scaling.KINDS)
def test_every_attention_kind_is_causal_and_measured(kind: str) -> None:
    attend = scaling.attention(kind, 64, SMALL)
    assert attend is not None
    q, k, v = torch.randn(3, 1, 64, 2, 8)
    changed = v.clone()
    changed[:, 40] += 1
    difference = (attend(q, k, changed) - attend(q, k, v)).abs().amax((0, 2, 3))
    assert (difference[:40] == 0).all()
    assert difference[40:].max() > 0
    row = scaling.measure(kind, 64, SMALL, None, CPU)
    assert row["seconds"] > 0
    assert row["bytes"] > 4 * 64 * 2 * 8


def test_scaling_stops_at_time_or_memory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = {"seconds": 1e-3, "bytes": 10}
    limit = replace(SMALL, max_seconds=2.0)
    assert "seconds" in scaling.measure("linear", 32, limit, quick, CPU)
    slow = scaling.measure("linear", 32, limit, quick | {"seconds": 1.5}, CPU)
    assert slow == {"kind": "linear", "length": 32, "stopped": "2 s per pass"}
    assert scaling.measure("linear", 64, limit, slow, CPU)["stopped"] == "2 s per pass"
    monkeypatch.setattr(scaling, "free_memory", lambda: 1000)
    large = scaling.measure("linear", 32, limit, quick | {"bytes": 200}, CPU)
    assert large["stopped"] == "memory"


def test_slope_is_fitted_to_four_longest_lengths() -> None:
    rows = [{"length": n, "seconds": 3 * n**1.7} for n in (128, 256, 512, 1024)]
    first = {"length": 64, "seconds": 1e9}
    last = {"length": 2048, "stopped": "memory"}
    power = slope([first, *rows, last], "seconds")
    assert power == pytest.approx(1.7)
    assert slope(rows[:2], "seconds") is None


def test_peer_attention_equals_ours() -> None:
    pytest.importorskip("fast_transformers")
    theirs = peers.attentions(48)
    q, k, v = torch.randn(3, 1, 48, 2, 8)
    for kind in ("linear", "softmax"):
        mine = scaling.attention(kind, 48, SMALL)
        assert mine is not None
        assert_close(mine(q, k, v), theirs[kind](q, k, v))


# --- figure 2 -------------------------------------------------------------------------------------


def test_sequences_contain_their_symbols_twice() -> None:
    symbols, copied = copy_task.sequences(200, 16, torch.Generator().manual_seed(1))
    seen = set()
    for row, mask in zip(symbols.tolist(), copied.tolist(), strict=True):
        n = sum(mask)
        seen.add(n)
        assert row[0] == row[n + 1] == copy_task.SEPARATOR
        assert row[1 : n + 1] == row[n + 2 : 2 * n + 2]
        assert all(symbol < copy_task.SYMBOLS for symbol in row[1 : n + 1])
        assert row[2 * n + 2 :] == [copy_task.SEPARATOR] * (17 - 2 * n - 2)
        assert mask == [n + 2 <= i < 2 * n + 2 for i in range(17)]
    assert seen == set(range(1, 8))


@pytest.mark.parametrize("kind", ["softmax", "lsh-1", "linear"])
def test_copy_network_learns_deterministically_by_seed(kind: str) -> None:
    task = replace(TASK, length=4, n_layers=1, steps=100, lower_after=80)
    row = copy_task.train_network(kind, 0, task, CPU)
    assert len(row["losses"]) == 5
    assert row["losses"][0] > 2 > row["losses"][-1]  # ln 10 is 2.3
    assert row["accuracy"] > 0.3
    again = copy_task.train_network(kind, 0, replace(task, steps=40), CPU)
    assert again["losses"] == row["losses"][:2]
    assert (
        copy_task.train_network(kind, 1, replace(task, steps=40), CPU)["losses"] != again["losses"]
    )


# --- tables and supplement ------------------------------------------------------------------------


def test_every_sampling_method_agrees_with_its_network() -> None:
    found = sampling_speed.sampling_methods(CPU)
    assert {*sampling_speed.STATEFUL, *sampling_speed.RECOMPUTED, sampling_speed.NATIVE} <= set(
        found
    )
    for method in found:
        sampling_speed.check(method, NETWORK, CPU)


@pytest.mark.parametrize("method", ["stateful-softmax", "softmax", "linear", "lsh-1"])
def test_sampling_method_with_wrong_output_is_not_timed(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cls = (
        sampling_speed.RecomputingSampler
        if method in sampling_speed.RECOMPUTED
        else sampling_speed.StatefulSampler
    )
    right = cls.step
    monkeypatch.setattr(cls, "step", lambda self, position: 1.01 * right(self, position))
    with pytest.raises(RuntimeError, match=f"{method} computes other parameters .* not timed"):
        sampling_speed.time_sampling(method, NETWORK, 2, 3, CPU)


def test_image_time_is_sum_of_step_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step at position p takes 2 + p seconds of a fake clock."""
    now = 0.0

    def step(self: sampling_speed.StatefulSampler, position: int) -> torch.Tensor:
        nonlocal now
        now += 2 + position
        return torch.empty(0)

    monkeypatch.setattr(sampling_speed, "check", lambda *_: None)
    monkeypatch.setattr(sampling_speed, "clock", lambda _: now)
    monkeypatch.setattr(sampling_speed.StatefulSampler, "step", step)
    steps = NETWORK.steps
    row = sampling_speed.time_sampling("linear", NETWORK, 5, 4, CPU)
    positions = np.arange(steps)
    assert row["seconds"] == pytest.approx(float(np.sum(2 + positions)))
    assert row["images_per_second"] == pytest.approx(5 / row["seconds"])


def test_native_sampling_and_supplement_rows(tmp_path: Path) -> None:
    row = sampling_speed.time_sampling(sampling_speed.NATIVE, NETWORK, 2, 3, CPU)
    assert math.isfinite(row["images_per_second"])
    network = sampling_speed.random_network("linear", NETWORK, CPU)
    assert row["precision"] == NativeDecoder(network, 1).precision
    sweep = latency.LatencySettings(positions=2, stateful_batches=(1, 2), recomputed_batches=(1,))
    report = Report(tmp_path, "supplement", {})
    keys = [key for key, _ in SUPPLEMENT.rows(sweep, report, None, CPU)]
    assert len(set(keys)) == len(keys)
    assert {"cpu mnist linear 1", "cpu mnist linear 2", "cpu cifar10 softmax 1"} <= set(keys)
    assert "cpu cifar10 linear 2" not in keys


def test_native_decoder_with_wrong_bits_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = NativeDecoder.step

    def step(self: NativeDecoder, slots: Any, n: int) -> None:
        right(self, slots, n)
        self.bits += 1

    monkeypatch.setattr(NativeDecoder, "step", step)
    with pytest.raises(RuntimeError, match="bits/dim from the reference, so it is not timed"):
        sampling_speed.time_sampling(sampling_speed.NATIVE, NETWORK, 2, 3, CPU)


TABLE = image_tables.ImageTable(
    data="mnist", n_layers=1, n_heads=2, d_model=16, crop=8, training_seconds=0.05,
    test_images=3, batch=2, positions=2, stateful_batches=(1, 2), recomputed_batches=(1,),
)  # fmt: skip


def test_table_trains_every_kind_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mnist(tmp_path / "data" / "mnist")
    report = Report(tmp_path / "out", "table1", {})
    monkeypatch.setattr(image_tables.ImageTable, "timed_network", property(small_paper))
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
    monkeypatch.setattr(image_tables.ImageTable, "timed_network", property(small_paper))

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


def small_paper(_: image_tables.ImageTable) -> ModelConfig:
    return replace(NETWORK, channels=1, height=8, width=8, d_model=32)


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
