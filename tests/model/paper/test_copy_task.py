"""Tests of figure 2: the copy task."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from scanline.model.paper import copy_task
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
