"""Tests of training settings and the learning rate schedule."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from scanline.model.training.config import TrainingConfig, learning_rate_factor
from tests.model.training.fixtures import (
    CONFIG,
)


def test_learning_rate_schedule() -> None:
    config = replace(CONFIG, steps=100, warmup=10, decay=0.4)
    factors = [learning_rate_factor(step, config) for step in range(101)]
    assert factors[:11] == pytest.approx([*(i / 10 for i in range(1, 11)), 1])
    assert factors[10:61] == [1.0] * 51
    assert factors[61:] == pytest.approx([1 - i / 40 for i in range(1, 41)])
    assert 0 < factors[99] < 0.03
    assert learning_rate_factor(0, replace(config, warmup=0)) == 1
    assert learning_rate_factor(99, replace(config, decay=0.0)) == 1
    longer = replace(config, steps=200)
    assert [learning_rate_factor(s, longer) for s in range(60)] == factors[:60]


@pytest.mark.parametrize(
    ("fields", "message"),
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
def test_invalid_settings_are_rejected(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainingConfig(**({"steps": 10} | fields))
