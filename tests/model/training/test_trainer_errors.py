"""What goes wrong in a run, and what no run is made of."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scanline.model.checkpoint import load_checkpoint
from scanline.model.data.dataset import Dataset
from scanline.model.training.config import TrainingConfig
from scanline.model.training.optimizers import step_optimizers
from scanline.model.training.stop_signal import StopSignal
from scanline.model.training.train_state import TrainState
from scanline.model.training.trainer import Trainer
from tests.model.training.fixtures import (
    CLASSES,
    CONFIG,
    CPU,
    MODEL,
    assert_same_bits,
    dataset,
    run,
    state,
    weights_of,
)


def test_a_batch_that_processes_cannot_share_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("is_initialized", True), ("get_rank", 0), ("get_world_size", 3)):
        monkeypatch.setattr(torch.distributed, name, lambda value=value: value)
    with pytest.raises(ValueError, match="batch of 4 images cannot be divided among 3 processes"):
        TrainState(MODEL, replace(CONFIG, batch=4), CPU)


def poison(train_state: TrainState, what: str) -> None:
    """Let weights, or gradients alone, stop being numbers after the third step."""
    right, bias = train_state.take_step, train_state.model.head.predictor.bias

    def take_step(images: torch.Tensor, labels: torch.Tensor | None) -> float:
        if train_state.step == 3 and what == "weights":
            with torch.no_grad():
                bias.fill_(torch.nan)
        elif train_state.step == 3:
            bias.register_hook(lambda grad: grad * torch.inf)  # type: ignore[no-untyped-call]
        return right(images, labels)

    train_state.take_step = take_step  # type: ignore[method-assign]


@pytest.mark.parametrize("what", ["weights", "gradient"])
def test_a_loss_that_is_no_number_stops_the_run_and_keeps_the_last_checkpoint(
    tmp_path: Path, what: str
) -> None:
    config = replace(CONFIG, checkpoint_every=2, steps=5, decay=0.0)
    trainer = Trainer(MODEL, config, tmp_path, CPU)
    poison(trainer.train_state, what)
    with pytest.raises(
        FloatingPointError, match=r"diverged at step 3: .*; train again in another folder"
    ):
        trainer.train(dataset(), None, StopSignal(), quiet=True)
    for parameter in load_checkpoint(weights_of(tmp_path)).model.parameters():
        assert parameter.isfinite().all()
    assert_same_bits(
        state(run(tmp_path, config, resume=True)), state(run(tmp_path / "healthy", config))
    )


def test_weights_that_are_no_numbers_replace_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step before a save breaks them, and no loss has told of it yet."""
    config = replace(CONFIG, checkpoint_every=2, steps=5, decay=0.0)
    trainer = Trainer(MODEL, config, tmp_path, CPU)

    def step(optimizers: list[torch.optim.Optimizer], factor: float) -> None:
        step_optimizers(optimizers, factor)
        if trainer.step == 3:
            trainer.train_state.model.head.predictor.bias.data.fill_(torch.nan)

    monkeypatch.setattr("scanline.model.training.train_state.step_optimizers", step)
    with pytest.raises(FloatingPointError, match="not finite after step 4 and were not saved"):
        trainer.train(dataset(), None, StopSignal(), quiet=True)
    monkeypatch.undo()
    assert load_checkpoint(weights_of(tmp_path)).facts["steps"] == 2
    assert run(tmp_path, config, resume=True).step == 5


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (Dataset("x", np.zeros((4, 4, 5, 1), np.uint8), None, CLASSES), "images have shape"),
        (Dataset("x", np.zeros((4, 5, 4, 3), np.uint8), None, CLASSES), "images have shape"),
        (Dataset("x", np.zeros((4, 5, 4, 1), np.uint8), None, ("a", "b")), "classes"),
        (Dataset("x", np.zeros((4, 5, 4, 1), np.uint8), None, ()), "classes"),
    ],
)
def test_data_that_does_not_fit_is_refused(tmp_path: Path, data: Dataset, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Trainer(MODEL, CONFIG, tmp_path, CPU).train(data, None, StopSignal(), quiet=True)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"steps": 0}, "steps must be at least 1, not 0"),
        ({"batch": -1}, "batch must be at least 1, not -1"),
        ({"checkpoint_every": 0}, "checkpoint_every must be at least 1"),
        ({"evaluate_every": 0}, "evaluate_every must be at least 1"),
        ({"learning_rate": -1e-3}, "learning_rate must be 0 or more"),
        ({"learning_rate": math.nan}, "learning_rate must be 0 or more, not nan"),
        ({"muon_rate": math.inf}, "muon_rate must be 0 or more, not inf"),
        ({"weight_decay": -1}, "weight_decay must be 0 or more"),
        ({"warmup": -1}, "warmup must be 0 or more"),
        ({"seed": -1}, "seed must be 0 or more"),
        ({"decay": 1.5}, "decay must be 0 to 1"),
        ({"average": -0.1}, "average must be 0 to 1"),
        ({"drop_label": math.nan}, "drop_label must be 0 to 1"),
        ({"precision": "fp8"}, "precision must be auto, bf16 or fp32, not 'fp8'"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        TrainingConfig(**({"steps": 10} | fields))
