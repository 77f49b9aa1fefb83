"""Tests of training within a budget."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from scanline.model.paper import budget
from scanline.model.paper.budget import Budget, History, Marks, train
from tests.model.paper.fixtures import CPU

EVEN = Marks(2)


class Counting:
    """Training whose loss is the number of its step, and each of whose steps takes a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stop_after: int | None = None) -> None:
        self.step, self.now, self.stop_after = 0, 0.0, stop_after
        monkeypatch.setattr(budget, "clock", lambda _: self.now)

    def take_step(self) -> float:
        self.step += 1
        self.now += 1
        if self.step == self.stop_after:
            os.kill(os.getpid(), signal.SIGTERM)
        return float(self.step)

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.step = saved["step"]


def run(
    training: Counting, folder: Path, limit: Budget, published: list[int] | None = None,
    marks: Marks = EVEN, **rest: Any,
) -> History:  # fmt: skip
    def evaluate(last: bool) -> dict[str, Any]:
        training.now += 100  # an evaluation takes time that does not count
        return {"at": training.step, "last": last}

    def publish(history: History) -> None:
        if published is not None:
            published.append(history.steps)

    given: dict[str, Any] = {"settings": {"kind": "linear"}} | rest
    return train(
        training, limit, folder, evaluate=evaluate, marks=marks, point_steps=2, device=CPU,
        publish=publish, **given,
    )  # fmt: skip


def test_training_ends_at_either_limit_with_curves_and_evaluations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published: list[int] = []
    history = run(Counting(monkeypatch), tmp_path, Budget(seconds=9), published)
    assert (history.steps, history.seconds) == (9, 9.0)
    assert history.losses == [[2, 2.0, 1.5], [4, 4.0, 3.5], [6, 6.0, 5.5], [8, 8.0, 7.5]]
    assert [(one["at"], one["last"]) for one in history.evaluations] == [
        (2, False), (4, False), (8, False), (9, True),
    ]  # fmt: skip
    assert published == [2, 4, 8, 9]
    assert run(Counting(monkeypatch), tmp_path, Budget(seconds=9, steps=3)).steps == 3
    assert "pending" not in history.row()


@pytest.mark.parametrize(
    ("marks", "steps", "times"),
    [
        (Marks(1), [1, 2, 4, 8], []),
        (Marks(3), [3, 6], []),
        (Marks(3, every=True), [3, 6, 9], []),
        (Marks(4, 1.5), [4, 8], [1.5, 3.0, 6.0]),
        (Marks(100, 0.25), [], [1.0, 2.0, 4.0, 8.0]),
    ],
)
def test_marks(
    marks: Marks,
    steps: list[int],
    times: list[float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history = run(Counting(monkeypatch), tmp_path, Budget(steps=10), marks=marks)
    found = history.evaluations
    assert [one["step_mark"] for one in found if "step_mark" in one] == steps
    assert [one["second_mark"] for one in found if "second_mark" in one] == times
    assert all(one["seconds"] >= one.get("second_mark", 0) for one in found)


def test_interrupted_training_continues_where_it_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(Counting(monkeypatch, stop_after=5), tmp_path, Budget(steps=9))
    assert (tmp_path / "training.pt").exists()
    published: list[int] = []
    history = run(Counting(monkeypatch), tmp_path, Budget(steps=9), published)
    whole = run(Counting(monkeypatch), tmp_path / "whole", Budget(steps=9))
    assert history == whole
    assert published == [8, 9]


def test_state_of_other_settings_is_not_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(Counting(monkeypatch, stop_after=2), tmp_path, Budget(steps=9))
    with pytest.raises(ValueError, match=r"training\.pt is the state of a run with other settings"):
        run(Counting(monkeypatch), tmp_path, Budget(steps=9), settings={"kind": "softmax"})


def test_converged_training_ends_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = run(
        Counting(monkeypatch), tmp_path, Budget(steps=90),
        converged=lambda history: len(history.evaluations) == 2,
    )  # fmt: skip
    assert history.steps == 4
