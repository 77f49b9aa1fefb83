"""Resumable training within a budget of time or steps, with curves over both.

The time is the process's CPU time if training runs on one CPU thread, so that other programs on the
machine do not decide which kind of attention gets further. Evaluations do not count.
"""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from scanline.model.atomic_files import write_atomically
from scanline.model.paper.report import Row, clock
from scanline.model.progress import show_progress
from scanline.model.torch_files import load_torch_file
from scanline.model.training.stop_signal import StopSignal

SAVE_EVERY = 120.0  # seconds of wall-clock time between two saved states


class Trainable(Protocol):
    """Network in training, whose whole state can be saved."""

    def take_step(self) -> float:
        """Train on the next batch and return its loss."""

    def state_dict(self) -> dict[str, Any]:
        """Return all state that a continuation needs: tensors, numbers, lists and dicts."""

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore a ``state_dict``."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Length of a training: it ends when either limit is reached.

    Attributes:
        seconds: Training time; None for no limit.
        steps: Number of steps; None for no limit.
    """

    seconds: float | None = None
    steps: int | None = None

    def spent(self, history: History) -> bool:
        """Return True if a training with this history ends."""
        return (self.seconds is not None and history.seconds >= self.seconds) or (
            self.steps is not None and history.steps >= self.steps
        )

    def progress(self, history: History) -> tuple[float, float | None, str]:
        """Return how much of the budget is spent, the whole of it, and its unit."""
        if self.seconds is not None:
            return round(history.seconds), self.seconds, "second"
        return history.steps, self.steps, "step"


@dataclass
class History:
    """Course of a training.

    Attributes:
        steps: Steps taken.
        seconds: Training time.
        losses: Training loss: points of steps, seconds, and the mean loss since the previous point.
        evaluations: Measurements, each with its ``steps`` and ``seconds``.
        pending: Losses since the last point.
    """

    steps: int = 0
    seconds: float = 0.0
    losses: list[list[float]] = field(default_factory=list)
    evaluations: list[Row] = field(default_factory=list)
    pending: list[float] = field(default_factory=list)

    def add(self, loss: float, seconds: float, point_steps: int) -> None:
        """Count a step, which may complete a point of the loss curve."""
        self.steps += 1
        self.seconds += seconds
        self.pending.append(loss)
        if len(self.pending) == point_steps:
            mean = sum(self.pending) / point_steps
            self.losses.append([self.steps, round(self.seconds, 2), round(mean, 5)])
            self.pending.clear()

    def row(self) -> Row:
        """Return the steps, seconds and curves for a report."""
        everything = asdict(self)
        del everything["pending"]
        return everything


@dataclass(frozen=True)
class Marks:
    """Steps and times at which a network is evaluated: a first one, then each at twice the last.

    With ``every``, a network is evaluated after each multiple of the step instead.

    All kinds of attention are evaluated at the same marks. They can therefore be compared at equal
    steps and at equal times, also while some are unfinished.

    Attributes:
        step: The first step.
        second: The first training time in seconds; None for no times.
        every: Evaluate after every multiple of ``step``.
    """

    step: int
    second: float | None = None
    every: bool = False

    def reached(self, before: float, history: History) -> Row | None:
        """Return the marks that the last step reached, which began at ``before`` seconds."""
        found: Row = {}
        multiple, rest = divmod(history.steps, self.step)
        if not rest and (self.every or multiple.bit_count() == 1):
            found["step_mark"] = history.steps
        if self.second is not None and history.seconds >= self.second:
            mark = self.second * 2.0 ** math.floor(math.log2(history.seconds / self.second))
            if before < mark:
                found["second_mark"] = mark
        return found or None


def train(
    run: Trainable,
    budget: Budget,
    folder: Path,
    *,
    settings: Row,
    evaluate: Callable[[bool], Row],
    marks: Marks,
    point_steps: int,
    device: torch.device,
    publish: Callable[[History], object],
    converged: Callable[[History], bool] = lambda history: False,
) -> History:
    """Train until the budget is spent, continuing the state saved in a folder if there is one.

    Args:
        run: The network in training.
        budget: Length of the training.
        folder: Folder of the saved state ``training.pt``; the runner deletes it after the unit.
        settings: Settings of the run, which a continued run must share.
        evaluate: Measures the network; called at the marks, and with True at the end.
        marks: When the network is measured.
        point_steps: Steps per point of the loss curve.
        device: Device of the network.
        publish: Receives the history after each evaluation.
        converged: Ends the training early; called after each evaluation.

    Raises:
        ValueError: If the saved state is of other settings.
        KeyboardInterrupt: If a signal asked to stop; the state has been saved.
    """
    path = folder / "training.pt"
    history = _load(path, run, settings) if path.exists() else History()
    saved = time.monotonic()

    def measure(mark: Row, last: bool = False) -> None:
        when = {"steps": history.steps, "seconds": round(history.seconds, 2)}
        history.evaluations.append(mark | when | evaluate(last))
        publish(history)

    spent, total, unit = budget.progress(history)
    with (
        StopSignal().handling_signals() as stop,
        show_progress(total, unit, desc=f"training {folder.name}", initial=spent) as bar,
    ):
        while not budget.spent(history):
            before, began = history.seconds, clock(device)
            loss = run.take_step()
            history.add(loss, clock(device) - began, point_steps)
            if mark := marks.reached(before, history):
                measure(mark)
                if converged(history):
                    break
            bar.update(budget.progress(history)[0] - bar.n)
            if stop.requested or time.monotonic() - saved > SAVE_EVERY:
                _save(path, run, history, settings)
                saved = time.monotonic()
            if stop.requested:
                raise KeyboardInterrupt
    measure({}, last=True)
    return history


def _save(path: Path, run: Trainable, history: History, settings: Row) -> None:
    file = io.BytesIO()
    state = {"settings": settings, "history": asdict(history), "run": run.state_dict()}
    torch.save(state, file)
    write_atomically(path, file.getvalue())


def _load(path: Path, run: Trainable, settings: Row) -> History:
    saved = load_torch_file(path)
    if saved["settings"] != settings:
        raise ValueError(
            f"{path} is the state of a run with other settings: choose another folder with --out, "
            "or delete it"
        )
    run.load_state_dict(saved["run"])
    return History(**saved["history"])
