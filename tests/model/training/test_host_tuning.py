"""Tests of the choice of precision and of frozen garbage collection."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from scanline.model.training import optimizers
from scanline.model.training import train_state as train_state_module
from scanline.model.training.host_tuning import bf16_is_fast, frozen_gc
from scanline.model.training.stop_signal import StopSignal
from scanline.model.training.train_state import TrainState
from scanline.model.training.trainer import Trainer
from tests.model.training.fixtures import (
    CONFIG,
    CPU,
    MODEL,
    dataset,
)


def test_emulated_bf16_is_not_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs before compute capability 8.0 emulate it."""

    def supported(including_emulation: bool = True) -> bool:
        return including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    assert not bf16_is_fast(torch.device("cuda"))


@pytest.mark.parametrize(("precision", "bf16"), [("auto", True), ("bf16", True), ("fp32", False)])
def test_optimizers_use_the_chosen_precision(
    precision: str, bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, chosen = optimizers.make_optimizers, list[bool]()

    def seen(*arguments: Any, bf16: bool) -> Any:
        chosen.append(bf16)
        return make(*arguments, bf16=bf16)

    monkeypatch.setattr(train_state_module, "bf16_is_fast", lambda _: True)
    monkeypatch.setattr(train_state_module, "make_optimizers", seen)
    train_state = TrainState(MODEL, replace(CONFIG, precision=precision), CPU)
    assert chosen == [train_state.bf16] == [bf16]


@pytest.mark.usefixtures("gc_unfrozen")
def test_existing_objects_are_frozen_during_training_only(tmp_path: Path) -> None:
    """Also if the training fails."""
    frozen: list[int] = []

    def watch(*_: object) -> None:
        frozen.append(gc.get_freeze_count())
        raise KeyboardInterrupt

    trainer = Trainer(MODEL, replace(CONFIG, evaluate_every=1), tmp_path, CPU)
    with pytest.raises(KeyboardInterrupt):
        trainer.train(dataset(), None, StopSignal(), quiet=True, after_validation=watch)
    assert frozen[0] > 0
    assert gc.get_freeze_count() == 0
    gc.freeze()
    with frozen_gc():
        pass
    assert gc.get_freeze_count() > 0  # frozen by the caller
