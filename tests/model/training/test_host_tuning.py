"""What a machine computes in: bfloat16 where that pays, and what is asked for where it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from scanline.model.training import optimizers
from scanline.model.training import train_state as train_state_module
from scanline.model.training.host_tuning import bf16_is_fast
from scanline.model.training.train_state import TrainState
from tests.model.training.fixtures import CONFIG, CPU, MODEL


def test_bfloat16_that_a_gpu_emulates_does_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """As before compute capability 8.0."""

    def supported(including_emulation: bool = True) -> bool:
        return including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    assert not bf16_is_fast(torch.device("cuda"))


@pytest.mark.parametrize(("precision", "bf16"), [("auto", True), ("bf16", True), ("fp32", False)])
def test_the_precision_asked_for_is_the_optimizers_too(
    precision: str, bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, asked = optimizers.make_optimizers, list[bool]()

    def seen(*arguments: Any, bf16: bool) -> Any:
        asked.append(bf16)
        return make(*arguments, bf16=bf16)

    monkeypatch.setattr(train_state_module, "bf16_is_fast", lambda _: True)
    monkeypatch.setattr(train_state_module, "make_optimizers", seen)
    train_state = TrainState(MODEL, replace(CONFIG, precision=precision), CPU)
    assert asked == [train_state.bf16] == [bf16]
