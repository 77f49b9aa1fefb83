"""Tests of figure 2: the copy task."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from scanline.model.paper import copy_task
from scanline.model.paper.report import Report
from tests.model.paper.fixtures import CPU, TASK


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


@pytest.mark.parametrize("kind", ["lsh-1", "linear"])
def test_copy_network_learns_deterministically_by_seed(kind: str, tmp_path: Path) -> None:
    def train(seed: int, steps: int) -> tuple[list[float], dict[str, Any]]:
        task = replace(TASK, length=4, n_layers=1, steps=steps, lower_after=80)
        report = Report(tmp_path / f"{seed} {steps}", kind, {})
        row = copy_task.train_one(kind, seed, task, report, CPU)
        return [loss for _, _, loss in row["losses"]], row["evaluations"][-1]

    losses, last = train(0, 100)
    assert len(losses) == 5
    assert losses[0] > 2 > losses[-1]  # ln 10 is 2.3
    assert last["steps"] == 100
    assert last["accuracy"] > 0.3
    again, _ = train(0, 40)
    assert again == losses[:2]
    assert train(1, 40)[0] != again


@pytest.mark.parametrize("kind", ["linear", "lsh-1"])
def test_learning_rate_falls_once_and_a_continued_run_has_the_same_losses(kind: str) -> None:
    task = replace(TASK, length=80, lower_after=3)  # longer than two chunks of LSH
    whole = copy_task.CopyTraining(kind, 0, task, CPU)
    losses, rates = [], []
    for _ in range(6):
        losses.append(whole.take_step())
        rates.append(whole.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx(3 * [task.learning_rate] + 3 * [task.learning_rate / 10])
    first = copy_task.CopyTraining(kind, 0, task, CPU)
    for _ in range(4):
        first.take_step()
    second = copy_task.CopyTraining(kind, 0, task, CPU)
    second.take_step()  # so that its state differs
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert [second.take_step() for _ in range(2)] == losses[4:]
    assert second.optimizer.param_groups[0]["lr"] == pytest.approx(task.learning_rate / 10)
