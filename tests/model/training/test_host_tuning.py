"""Tests of the choice of precision."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from scanline.model.training import train_state as train_state_module
from scanline.model.training.host_tuning import bf16_is_fast
from scanline.model.training.train_state import TrainState
from tests.model.training.fixtures import CONFIG, CPU, MODEL


def test_emulated_bf16_is_not_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs before compute capability 8.0 emulate it."""

    def supported(including_emulation: bool = True) -> bool:
        return including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    assert not bf16_is_fast(torch.device("cuda"))


@pytest.mark.parametrize("fast", [True, False])
def test_choice_of_precision(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_state_module, "bf16_is_fast", lambda _: fast)
    for precision, bf16 in (("auto", fast), ("bf16", True), ("fp32", False)):
        train_state = TrainState(MODEL, replace(CONFIG, precision=precision), CPU)
        assert train_state.bf16 == bf16
