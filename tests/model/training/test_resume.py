"""Tests of resuming a run, and of the checks before it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from scanline.model.checkpoint import CheckpointError, load_checkpoint
from scanline.model.training.config import TrainingConfig
from scanline.model.training.resume import read_saved_run
from scanline.model.training.stop_signal import StopSignal
from scanline.model.training.trainer import Trainer
from tests.model.training.fixtures import (
    CONFIG,
    CPU,
    MODEL,
    assert_same_bits,
    dataset,
    log_of,
    run,
    state,
    weights_of,
)


def stopped_at(cut: int, folder: Path, config: TrainingConfig = CONFIG) -> None:
    """Train, and stop after ``cut`` steps."""
    stop = StopSignal()

    class Stopping(Trainer):
        def _log(self, **fields: float | None) -> None:
            super()._log(**fields)
            stop.requested |= self.step == cut

    trainer = Stopping(MODEL, config, folder, CPU)
    trainer.train(dataset(), None, stop, quiet=True)
    assert trainer.step == cut


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """Return a run without interruption."""
    return run(tmp_path_factory.mktemp("runs") / "uninterrupted")


@pytest.mark.parametrize("cut", [1, pytest.param(3, marks=pytest.mark.broad), 5])
def test_resumed_run_equals_uninterrupted_run(
    tmp_path: Path, cut: int, uninterrupted: Trainer
) -> None:
    """Weights, EMA, both optimizers and later steps are identical."""
    stopped_at(cut, tmp_path / "parts")
    torch.manual_seed(99)  # must have no effect
    resumed = run(tmp_path / "parts", resume=True)
    assert_same_bits(state(resumed), state(uninterrupted))
    assert_same_bits(
        dict(load_checkpoint(weights_of(tmp_path / "parts")).model.state_dict()),
        dict(load_checkpoint(uninterrupted.weights).model.state_dict()),
    )
    logs = [
        [line["bits_per_dim"] for line in log_of(folder)]
        for folder in (tmp_path / "parts", uninterrupted.folder)
    ]
    assert logs[0] == logs[1]


@pytest.fixture
def saved_run(one_step: Path, tmp_path: Path) -> Path:
    """Return a copy of the folder of a run of one step."""
    return shutil.copytree(one_step, tmp_path / "saved_run")


@pytest.fixture(scope="module")
def one_step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of one step."""
    folder = tmp_path_factory.mktemp("runs") / "saved_run"
    run(folder, replace(CONFIG, steps=1))
    return folder


def test_resuming_finished_run_changes_nothing(tmp_path: Path) -> None:
    run(tmp_path)
    before = (tmp_path / "training.pt").read_bytes()
    assert run(tmp_path, resume=True).step == 6
    assert (tmp_path / "training.pt").read_bytes() == before
    assert len(log_of(tmp_path)) == 6


@pytest.mark.parametrize(
    "change",
    [
        {"batch": 2}, {"seed": 9}, {"learning_rate": 1e-3}, {"muon_rate": 0.1}, {"warmup": 3},
        {"edge_rate": 1e-5},
        {"average": 0.9}, {"drop_label": 0.5}, {"weight_decay": 0.0}, {"precision": "bf16"},
        {"shift": 1},
        {"mirror": True},
        {"dist_aug": 0.5},
    ],
    ids=str,
)  # fmt: skip
def test_changed_settings_are_rejected(one_step: Path, change: dict[str, Any]) -> None:
    (name,) = change
    with pytest.raises(CheckpointError, match=rf"other settings \({name}\); choose the same"):
        Trainer(MODEL, replace(CONFIG, **change), one_step, CPU).resume()


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 9},
        {"decay": 0.9},
        {"checkpoint_every": 7},
        {"evaluate_every": 7},
    ],
)
def test_schedule_and_intervals_may_change(one_step: Path, change: dict[str, Any]) -> None:
    trainer = Trainer(MODEL, replace(CONFIG, **change), one_step, CPU)
    trainer.resume()
    assert trainer.step == 1


def test_weights_stay_in_the_run_folder(saved_run: Path) -> None:
    path = saved_run / "training.pt"
    torch.save(torch.load(path, weights_only=True) | {"weights": "../other.safetensors"}, path)
    (saved_run.parent / "other.safetensors").touch()
    trainer = Trainer(MODEL, CONFIG, saved_run, CPU)
    trainer.resume()
    assert trainer.weights.parent == saved_run


def test_setting_missing_in_saved_run_has_its_default(saved_run: Path) -> None:
    path = saved_run / "training.pt"
    saved = torch.load(path, weights_only=True)
    del saved["training"]["mirror"]
    torch.save(saved, path)
    Trainer(MODEL, CONFIG, saved_run, CPU).resume()
    with pytest.raises(CheckpointError, match=r"other settings \(mirror\)"):
        Trainer(MODEL, replace(CONFIG, mirror=True), saved_run, CPU).resume()
    saved["training"]["retired"] = 1
    torch.save(saved, path)
    with pytest.raises(CheckpointError, match=r"other settings \(retired\)"):
        Trainer(MODEL, CONFIG, saved_run, CPU).resume()


@pytest.mark.parametrize("compiled", [False, True])
def test_run_of_a_version_with_the_compile_setting_is_resumed(
    saved_run: Path, compiled: bool
) -> None:
    path = saved_run / "training.pt"
    saved = torch.load(path, weights_only=True)
    saved["training"]["compile"] = compiled
    torch.save(saved, path)
    assert read_saved_run(saved_run).training_config == replace(CONFIG, steps=1)
    trainer = Trainer(MODEL, CONFIG, saved_run, CPU)
    trainer.resume()
    trainer.train(dataset(), None, StopSignal(), quiet=True)
    assert trainer.step == CONFIG.steps


def test_learning_rates_come_from_the_current_config(saved_run: Path) -> None:
    """An earlier version may have derived other rates from the same settings."""
    path = saved_run / "training.pt"
    saved = torch.load(path, weights_only=True)
    for optimizer in saved["optimizers"]:
        for group in optimizer["param_groups"]:
            group["rate"] *= 7
    torch.save(saved, path)
    resumed, new = (Trainer(MODEL, CONFIG, saved_run, CPU) for _ in range(2))
    resumed.resume()
    rates = [
        [
            group["rate"]
            for optimizer in one.train_state.optimizers
            for group in optimizer.param_groups
        ]
        for one in (resumed, new)
    ]
    assert rates[0] == rates[1]


def test_other_network_is_rejected(one_step: Path) -> None:
    with pytest.raises(CheckpointError, match=r"another network \(\w+\); choose the same"):
        Trainer(replace(MODEL, d_ff=32), CONFIG, one_step, CPU).resume()


@pytest.mark.parametrize("content", [None, b"", b"hello", b"PK\x03\x04" + bytes(50), bytes(500)])
def test_file_that_is_no_state_is_rejected(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "training.pt").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"training.pt"):
        Trainer(MODEL, CONFIG, tmp_path, CPU).resume()


def test_truncated_or_foreign_state_is_rejected(saved_run: Path) -> None:
    path = saved_run / "training.pt"
    path.write_bytes(path.read_bytes()[:4000])
    with pytest.raises(CheckpointError, match=r"training.pt is not a PyTorch file"):
        Trainer(MODEL, CONFIG, saved_run, CPU).resume()
    torch.save({"weight": torch.ones(2)}, path)
    with pytest.raises(CheckpointError, match=r"training.pt is not the state of a training run"):
        Trainer(MODEL, CONFIG, saved_run, CPU).resume()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("config", []),
        ("step", "x"),
        ("training", None),
        ("optimizers", []),
        ("model", {"a": 1}),
        ("weights", 3),
    ],
)
def test_damaged_state_is_rejected(saved_run: Path, name: str, value: object) -> None:
    path = saved_run / "training.pt"
    torch.save(torch.load(path, weights_only=True) | {name: value}, path)
    with pytest.raises(CheckpointError, match=r"training.pt is (damaged|not the state of a tra)"):
        Trainer(MODEL, CONFIG, saved_run, CPU).resume()


def test_other_images_are_rejected(saved_run: Path) -> None:
    """This includes another number of held-out images."""
    trainer = Trainer(MODEL, CONFIG, saved_run, CPU)
    trainer.resume()
    data = dataset()
    assert data.labels is not None
    relabelled, unconditional = replace(data, labels=1 - data.labels), replace(data, labels=None)
    for other in (dataset(21), dataset(22, seed=1), relabelled, replace(unconditional, classes=())):
        with pytest.raises((CheckpointError, ValueError), match=r"other images|the data's classes"):
            trainer.train(other, None, StopSignal(), quiet=True)
    assert trainer.step == 1
    trainer.train(dataset(), None, StopSignal(), quiet=True)
    assert trainer.step == CONFIG.steps


def test_fewer_steps_than_taken_are_rejected(tmp_path: Path) -> None:
    run(tmp_path, replace(CONFIG, steps=3))
    with pytest.raises(
        CheckpointError, match=r"already at step 3: --steps must be at least that; got 2"
    ):
        run(tmp_path, replace(CONFIG, steps=2), resume=True)
