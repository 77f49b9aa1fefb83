"""Execution of a training run in its folder, and its final report."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from scanline.model.checkpoint import TRAINING_STATE
from scanline.model.config import ModelConfig
from scanline.model.data.dataset import Dataset
from scanline.model.network import LinearTransformer
from scanline.model.training.config import TrainingConfig
from scanline.model.training.distributed import choose_process_count, process_group
from scanline.model.training.run_lock import run_lock
from scanline.model.training.stdio import ignore_closed_output
from scanline.model.training.stop_signal import StopSignal
from scanline.model.training.trainer import Trainer

_UNIFORM_BITS = 8  # bits/dim of a uniform distribution over 256 values
_TOLERANCE = 0.05  # bits/dim above the best validation that count as worse


def check_no_run(folder: Path) -> None:
    """Raise ``ValueError`` if a folder holds a run."""
    if (folder / TRAINING_STATE).exists():
        raise ValueError(
            f"{folder} already holds a run: add --resume to continue it, or choose another folder "
            "with --out"
        )


def overfitting_report(validation: Sequence[Mapping[str, float]], trained: float) -> str:
    """Describe a problem with the validation curve, or return "" if there is none.

    Args:
        validation: All validations of the run, with ``step`` and ``bits_per_dim``.
        trained: Mean bits/dim of the last training batches; NaN if no step was taken. If it is
            above the best validation, the network has not overfitted but forgotten.
    """
    if not validation or math.isnan(trained):
        return ""
    best = min(validation, key=lambda one: one["bits_per_dim"])
    least, last, step = best["bits_per_dim"], validation[-1]["bits_per_dim"], best["step"]
    lower_rate = "train in another folder at a lower --learning-rate and --muon-rate"
    if _UNIFORM_BITS <= last == least < 2 * _UNIFORM_BITS:
        return (
            f"\nthe network has learned little so far: {last:,.3f} bits/dim on the held-out "
            f"images, where guessing gives {_UNIFORM_BITS}; train for more --steps"
        )
    if least >= _UNIFORM_BITS:
        return (
            f"\nthe network has learned nothing: {last:,.3f} bits/dim on the held-out images, "
            f"where guessing gives {_UNIFORM_BITS}; {lower_rate}"
        )
    if last < least + _TOLERANCE:
        return ""
    worse = (
        f"has become worse on the held-out images ({least:.3f} bits/dim at step {step:,.0f}, "
        f"{last:.3f} now)"
    )
    if trained > least + _TOLERANCE:
        return f"\nthe network {worse}; {lower_rate}"
    return (
        f"\nthe network overfits: it {worse}; train on more images, or in another folder with "
        f"--steps {step:.0f}"
    )


def _describe_data(data: Dataset, validation: Dataset | None) -> str:
    held_out, classes = len(validation or ()), len(data.classes)
    in_classes = f" in {classes} class{'es' if classes > 1 else ''}" if classes else ""
    return f"{len(data) + held_out:,} images{in_classes}, {held_out:,} held out"


@dataclass(frozen=True, kw_only=True)
class Run:
    """A training run: new, resumed, or started from a checkpoint's weights.

    Attributes:
        network: Network to train.
        training_config: Training settings.
        folder: Folder of the run.
        resume: Continue the run saved in the folder.
        start_from: Checkpoint whose weights a new run starts with.
        data: Images to train on.
        validation: Held-out images, or None.
        processes: Number of data-parallel processes; None chooses it for the machine
            (``choose_process_count``).
    """

    network: ModelConfig
    training_config: TrainingConfig
    folder: Path
    data: Dataset
    validation: Dataset | None = None
    resume: bool = False
    start_from: Path | None = None
    processes: int | None = None

    def execute(self, after_validation: Callable[[LinearTransformer, Path], None]) -> str:
        """Train to the last step or until a stop is requested, and return a summary.

        Args:
            after_validation: Receives the averaged network and the folder after each validation.

        Returns:
            A summary for the user; "" in all but the first of torchrun's processes.
        """
        count = choose_process_count(self.training_config.batch, self.processes)
        data, validation = self.data, self.validation
        stop_signal = StopSignal(sys.stderr.write)
        with (
            ignore_closed_output(),
            stop_signal.handling_signals() as stop,
            self._locked(),  # before other processes read the state to resume
            process_group(count, replace(self, validation=None)._run_worker) as device,
        ):
            trainer = self._trainer(device)
            if trainer.train_state.rank == 0:
                sys.stderr.write(f"{_describe_data(data, validation)}\n")
            trainer.train(data, validation, stop, quiet=False, after_validation=after_validation)
        progress = f"{trainer.step:,} of {self.training_config.steps:,} steps; {trainer.weights}"
        if trainer.train_state.rank > 0:
            return ""
        if trainer.step == 0:
            return "stopped before the first step: nothing was saved"
        done = trainer.step == self.training_config.steps
        summary = (
            f"done: {progress}" if done else f"stopped at {progress}; continue it with --resume"
        )
        return summary + overfitting_report(trainer.validation, trainer.recent_bits)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the folder in the first process, on behalf of all."""
        if int(os.environ.get("RANK", 0)) > 0:  # another process of torchrun
            yield
            return
        with run_lock(self.folder):
            if (
                not self.resume
            ):  # another run may have started and ended since the folder was chosen
                check_no_run(self.folder)
            yield

    def _run_worker(self, device: torch.device) -> None:
        """Train on this process's share of every batch, without output."""
        self._trainer(device).train(self.data, None, StopSignal(), quiet=True)

    def _trainer(self, device: torch.device) -> Trainer:
        trainer = Trainer(self.network, self.training_config, self.folder, device)
        if self.resume:
            trainer.resume()
        elif self.start_from:
            trainer.start_from(self.start_from)
        return trainer
