"""Training run as a user specifies it: data, network, settings and folder."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from scanline.model.checkpoint import read_config
from scanline.model.config import PRESETS, ModelConfig
from scanline.model.data.dataset import Dataset
from scanline.model.network import LinearTransformer
from scanline.model.training.config import TrainingConfig
from scanline.model.training.distributed import choose_process_count, process_group
from scanline.model.training.growth import check_growable
from scanline.model.training.resume import weights_path
from scanline.model.training.run_lock import run_lock
from scanline.model.training.stdio import ignore_closed_output
from scanline.model.training.stop_signal import StopSignal
from scanline.model.training.trainer import Trainer

_DEFAULT_LAYERS = 4  # for a user's own images: there are few of them and little time
# Fields taken from the checkpoint that a run starts from.
_START_FIELDS = ("n_layers", "d_model", "d_ff", "n_heads", "attention", "feature_map")
# Fields that identify an architecture; a preset's sizes and parts may change between versions.
_ARCHITECTURE_FIELDS = ("input", "order", "head", "norm", "activation", "positions")
_UNIFORM_BITS = 8  # bits/dim of a uniform distribution over 256 values
_TOLERANCE = 0.05  # bits/dim above the best validation that count as worse


@dataclass(frozen=True, kw_only=True)
class NetworkOverrides:
    """Changes to a preset's network; None keeps the preset's value.

    ``width`` sets ``d_model``, and ``d_ff`` to four times as much.
    """

    layers: int | None = None
    width: int | None = None
    heads: int | None = None
    attention: str | None = None
    feature_map: str | None = None

    def apply(self, network: ModelConfig) -> ModelConfig:
        """Return the changed network; raise ``ValueError`` if it is invalid."""
        fields: dict[str, Any] = {
            "n_layers": self.layers, "d_model": self.width, "n_heads": self.heads,
            "d_ff": None if self.width is None else 4 * self.width,
            "attention": self.attention, "feature_map": self.feature_map,
        }  # fmt: skip
        return replace(network, **{n: value for n, value in fields.items() if value is not None})


def choose_network(
    preset: str | None,
    data: Dataset,
    overrides: NetworkOverrides = NetworkOverrides(),
    *,
    start_from: Path | None = None,
    resumed: ModelConfig | None = None,
) -> ModelConfig:
    """Choose the network to train.

    Args:
        preset: name of a preset; None chooses the one closest to the data.
        data: images to train on; they set size, channels and classes if there is no preset.
        overrides: changes to the chosen network.
        start_from: checkpoint whose layers, widths and attention the network takes over.
        resumed: network of a run to resume, which replaces preset and checkpoint.

    Raises:
        ValueError: the network is invalid, or ``resumed`` has another architecture than ``preset``.
        CheckpointError: the checkpoint's network cannot be grown into the chosen one.
    """
    if resumed is not None:
        check_same_architecture(preset, resumed)
        network = resumed
    elif preset is not None:
        network = PRESETS[preset]
    else:
        height, width, channels = data.images.shape[1:]
        closest = PRESETS["mnist" if channels == 1 else "cifar10"]
        network = replace(
            closest, height=height, width=width, classes=data.classes, n_layers=_DEFAULT_LAYERS
        )
    start = None
    if start_from is not None and resumed is None:
        start = read_config(start_from)
        network = replace(network, **{name: getattr(start, name) for name in _START_FIELDS})
    network = overrides.apply(network)
    if start_from is not None and start is not None:
        check_growable(start_from, start, network)
    return network


def check_same_architecture(preset: str | None, resumed: ModelConfig) -> None:
    """Raise ``ValueError`` if a resumed run's network has another architecture than a preset."""
    wanted = PRESETS[preset] if preset is not None else resumed
    if different := [
        name for name in _ARCHITECTURE_FIELDS if getattr(wanted, name) != getattr(resumed, name)
    ]:
        raise ValueError(
            f"the run trains another network than {preset} ({', '.join(different)}): name the data "
            "set it was started with, or choose another folder with --out"
        )


def choose_run_folder(
    out: Path | None, dataset: str | None, images: Path | None, resume: bool
) -> Path:
    """Choose a run's folder: ``out``, else ``runs/`` and the name of the data.

    Raises:
        ValueError: the folder holds a run that is not to be resumed, or none to resume, or lies in
            the folder of images.
    """
    folder = out or Path("runs") / (dataset or (images.resolve().name if images else ""))
    if images and not dataset and folder.resolve().is_relative_to(images.resolve()):
        raise ValueError(
            f"the run's folder {folder} lies in {images}, so its sample images would become "
            "training images: choose another folder with --out, and move an existing run there"
        )
    resumable = (folder / "training.pt").exists()
    if resume and not resumable:
        raise ValueError(f"there is no run to resume in {folder}")
    if not resume:
        _check_free(folder)
    weights = weights_path(folder, {})
    try:
        weights.name.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"the name of the folder {str(folder)!r} is not UTF-8, and the weights are named after "
            "it: choose another folder with --out"
        ) from None
    if weights.exists() and not resume:
        raise ValueError(
            f"{folder} holds the weights {weights.name} but no run to resume: choose another "
            f"folder with --out, and --from {weights} to start from these weights"
        )
    if any(path.exists() and not path.is_dir() for path in (folder, *folder.parents)):
        raise ValueError(f"{folder} is a file or lies in one: choose another folder with --out")
    return folder


def check_resume_options(
    resumed: ModelConfig,
    size: int | None,
    grey: bool,
    start_from: Path | None,
    hold_out: int | None = None,
    held_out: int | None = None,
) -> None:
    """Raise ``ValueError`` if the options contradict the run to resume.

    Done before the images are read, which may take long.

    Args:
        resumed: the run's network.
        size: the option ``--size``.
        grey: the option ``--grey``.
        start_from: the option ``--from``.
        hold_out: the option ``--hold-out``.
        held_out: the number of images that the run holds out, if known.
    """
    if start_from:
        raise ValueError(
            "--from starts a new run and --resume continues one: leave one of them out"
        )
    if size is not None and size != resumed.height:
        raise ValueError(f"the run's images have {resumed.height} pixels a side: leave out --size")
    if grey and resumed.channels != 1:
        raise ValueError("the run's images have colours: leave out --grey")
    if None not in (hold_out, held_out) and hold_out != held_out:
        raise ValueError(f"the run holds out {held_out} images: leave out --hold-out")


def _check_free(folder: Path) -> None:
    if (folder / "training.pt").exists():
        raise ValueError(
            f"{folder} already holds a run: add --resume to continue it, or choose another folder "
            "with --out"
        )


def overfitting_report(validation: Sequence[Mapping[str, float]], trained: float) -> str:
    """Describe a problem with the validation curve, or return "" if there is none.

    Args:
        validation: all validations of the run, with ``step`` and ``bits_per_dim``.
        trained: bits/dim of the last training batch; NaN if no step was taken. If it is above the
            best validation, the network has not overfitted but forgotten.
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
    worse = f"on the held-out images: {least:.3f} bits/dim at step {step:,.0f}, {last:.3f} now"
    if trained > least + _TOLERANCE:
        return f"\nthe network has become worse {worse}; {lower_rate}"
    return (
        f"\nthe network overfits, it has become worse {worse}; train on more images, or in another "
        f"folder with --steps {step:.0f}"
    )


def _describe_data(data: Dataset, validation: Dataset | None) -> str:
    held_out, classes = len(validation or ()), len(data.classes)
    in_classes = f" in {classes} class{'es' if classes > 1 else ''}" if classes else ""
    return f"{len(data) + held_out:,} images{in_classes}, {held_out:,} held out"


@dataclass(frozen=True, kw_only=True)
class Run:
    """A training run: new, resumed, or started from a checkpoint's weights.

    Args:
        network: network to train.
        training_config: training settings.
        folder: folder of the run.
        resume: continue the run saved in the folder.
        start_from: checkpoint whose weights a new run starts with.
    """

    network: ModelConfig
    training_config: TrainingConfig
    folder: Path
    resume: bool = False
    start_from: Path | None = None

    def execute(
        self,
        data: Dataset,
        validation: Dataset | None,
        after_validation: Callable[[LinearTransformer, Path], None],
        processes: int | None = None,
    ) -> str:
        """Train to the last step or until a stop is requested, and return a summary.

        Args:
            data: images to train on.
            validation: held-out images, or None.
            after_validation: receives the averaged network and the folder after each validation.
            processes: number of data-parallel processes; None chooses it for the machine
                (``choose_process_count``).

        Returns:
            A summary for the user; "" in all but the first of torchrun's processes.
        """
        count = choose_process_count(self.training_config.batch, processes)
        stop_signal = StopSignal(sys.stderr.write)
        with (
            ignore_closed_output(),
            stop_signal.handling_signals() as stop,
            self._locked(),  # before other processes read the state to resume
            process_group(count, self._run_worker, data) as device,
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
        return summary + overfitting_report(trainer.validation, trainer.bits)

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
                _check_free(self.folder)
            yield

    def _run_worker(self, device: torch.device, data: Dataset) -> None:
        """Train on this process's share of every batch, without output."""
        self._trainer(device).train(data, None, StopSignal(), quiet=True)

    def _trainer(self, device: torch.device) -> Trainer:
        trainer = Trainer(self.network, self.training_config, self.folder, device)
        if self.resume:
            trainer.resume()
        elif self.start_from:
            trainer.start_from(self.start_from)
        return trainer
