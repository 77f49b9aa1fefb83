"""Tests of drawing speed by batch size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from scanline.model.config import PRESETS
from scanline.model.paper import latency
from scanline.model.paper.latency import SUPPLEMENT, LatencySettings
from tests.model.paper.fixtures import CPU, NETWORK, drawn, unit_run

LIMITS = LatencySettings(batches=(1, 4, 16), max_step_seconds=0.5)


def test_batches_stop_at_time_or_memory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "mnist-paper", NETWORK)

    def time(method: str, config: Any, batch: int, *rest: object) -> dict[str, Any]:
        return {"seconds": [0.1 * batch * config.steps]}

    monkeypatch.setattr(latency, "time_sampling", time)

    def measure(method: str, batch: int, before: Any = None) -> dict[str, Any]:
        return latency.measure(method, "mnist", batch, LIMITS, before, CPU)

    one = measure("linear", 1)
    four = measure("linear", 4, one)
    assert "seconds" in four
    stopped = measure("linear", 16, four)
    assert stopped["stopped"] == "0.5 s per step"
    assert measure("linear", 17, stopped)["stopped"] == "0.5 s per step"
    each = latency.state_bytes("stateful-softmax", NETWORK)
    monkeypatch.setattr(latency, "free_memory", lambda: 3 * each)
    assert "seconds" in measure("stateful-softmax", 2)
    assert measure("stateful-softmax", 4)["stopped"] == "memory"
    assert "seconds" in measure("softmax", 4)

    def fail(*arguments: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(latency, "time_sampling", fail)
    assert measure("softmax", 4)["stopped"] == "memory"


def test_state_of_linear_attention_has_the_same_size_at_any_length() -> None:
    config = PRESETS["mnist-paper"]
    long = replace(config, height=2 * config.height)
    each = latency.state_bytes("linear", config)
    assert each == 8 * 8 * 32 * (32 + 1) * 4  # layers, heads, features: kv and z
    assert latency.state_bytes("linear", long) == latency.state_bytes("linear-native", long) == each
    assert latency.state_bytes("stateful-softmax", config) == 8 * 784 * 256 * 2 * 4
    assert latency.state_bytes("softmax", config) == 0


def test_units_name_device_data_and_method(tmp_path: Path) -> None:
    units = SUPPLEMENT.units(LIMITS)
    assert {"cpu-mnist-linear", "cpu-cifar10-stateful-softmax", "cpu-mnist-linear-native"} <= {
        *units
    }
    run = unit_run("cpu-cifar10-stateful-softmax", LIMITS, tmp_path)
    assert [key for key, _ in SUPPLEMENT.rows(run)] == [
        f"cpu cifar10 stateful-softmax {batch}" for batch in LIMITS.batches
    ]


def test_table_has_best_batch_latency_and_ratio_to_softmax() -> None:
    rows = (
        drawn("mnist", "softmax", 100.0) | drawn("mnist", "linear", 5.0)
        | drawn("mnist", "linear", 20.0, 64)
    )  # fmt: skip
    table = SUPPLEMENT.table(rows)
    assert (
        "| linear (plain PyTorch) | 143 (317 ×) | 3.2 (320 ×) | 64 | "
        "5.5 (13.2 ×) | 5 (20 ×) | 2 % |"
    ) in table
    assert "| linear | 0.2 | 3.2 |" in table
    stopped = {"method": "linear", "data": "mnist", "device": "cpu", "batch": 256, "stopped": "x"}
    assert SUPPLEMENT.table(rows | {"cpu mnist linear 256": stopped}) == table
