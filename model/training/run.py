"""A training run as its user names it: its data, its network, its folder, and its course."""

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

_FEW_LAYERS = 4  # of a network for a person's own pictures: they are few, and so are the minutes
# What a run has of the checkpoint that it starts from.
_OWN = ("n_layers", "d_model", "d_ff", "n_heads", "attention", "feature_map")
# What tells one kind of network from another; a preset's sizes and parts change with the versions.
_KIND = ("input", "order", "head", "norm", "activation", "positions")
_BITS = 8  # of a value
_BY_HEART = 0.05  # bits/dim above the best that tell a network that learns by heart


@dataclass(frozen=True, kw_only=True)
class NetworkOverrides:
    """What a user has otherwise than the preset; None leaves it as it is.

    A ``width`` overrides the feed-forward network's with it, to four times as much.
    """

    layers: int | None = None
    width: int | None = None
    heads: int | None = None
    attention: str | None = None
    feature_map: str | None = None

    def apply(self, network: ModelConfig) -> ModelConfig:
        """Change a network; raises ``ValueError`` on what none can be."""
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
    """Choose the network: a preset, else the one nearest to the data; changed where asked.

    One that starts from a checkpoint has its sizes and its attention, and a
    resumed run keeps its own.
    Raises ``ValueError`` on what no network can be, and on a preset of
    another kind than what was resumed.
    """
    if resumed is not None:
        check_same_architecture(preset, resumed)
        network = resumed
    elif preset is not None:
        network = PRESETS[preset]
    else:
        height, side, channels = data.images.shape[1:]
        nearest = PRESETS["mnist" if channels == 1 else "cifar10"]
        network = replace(
            nearest, height=height, width=side, classes=data.classes, n_layers=_FEW_LAYERS
        )
    start = None
    if start_from is not None and resumed is None:
        start = read_config(start_from)
        network = replace(network, **{name: getattr(start, name) for name in _OWN})
    network = overrides.apply(network)
    if start_from is not None and start is not None:
        check_growable(start_from, start, network)
    return network


def check_same_architecture(preset: str | None, resumed: ModelConfig) -> None:
    """Raise ``ValueError`` where a run was resumed with a network of another kind than a preset."""
    asked = PRESETS[preset] if preset is not None else resumed
    if differ := [name for name in _KIND if getattr(asked, name) != getattr(resumed, name)]:
        raise ValueError(
            f"the run is of another network than {preset} ({', '.join(differ)}): name what it "
            "began with, or give another --out"
        )


def choose_run_folder(
    out: Path | None, dataset: str | None, images: Path | None, resume: bool
) -> Path:
    """Choose a run's folder, ``runs/`` and the data's name unless told.

    Raises ``ValueError`` where it holds a run, or what is left of one, that is not to be resumed,
    or none that is, and where it lies among the images.
    """
    folder = out or Path("runs") / (dataset or (images.resolve().name if images else ""))
    if images and not dataset and folder.resolve().is_relative_to(images.resolve()):
        raise ValueError(
            f"the run's folder {folder} lies in {images}, and its own pictures would be taken for "
            "images to train on: give another --out, and move a run that is there already"
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
            f"the folder {str(folder)!r} has a name that is no UTF-8, and its weights would have "
            "the same: give another --out"
        ) from None
    if weights.exists() and not resume:
        raise ValueError(
            f"{folder} holds {weights.name} of a run that left nothing to resume: give another "
            f"--out, with --from {weights} to begin with its weights"
        )
    if any(path.exists() and not path.is_dir() for path in (folder, *folder.parents)):
        raise ValueError(f"{folder} is or lies in a file: give another --out")
    return folder


def check_resume_options(
    resumed: ModelConfig,
    size: int | None,
    grey: bool,
    start_from: Path | None,
    hold_out: int | None = None,
    held_out: int | None = None,
) -> None:
    """Raise ``ValueError`` where what is asked of a run that goes on is another than it began with.

    Before its images are read, which may take long.
    """
    if start_from:
        raise ValueError("--from begins a run, which --resume goes on with: leave one of them out")
    if size is not None and size != resumed.height:
        raise ValueError(
            f"the run's pictures have {resumed.height} pixels a side: leave out --size"
        )
    if grey and resumed.channels != 1:
        raise ValueError("the run's pictures have colours: leave out --grey")
    if None not in (hold_out, held_out) and hold_out != held_out:
        raise ValueError(f"the run holds out {held_out} images: leave out --hold-out")


def _check_free(folder: Path) -> None:
    if (folder / "training.pt").exists():
        raise ValueError(
            f"{folder} already holds a run: add --resume to go on, or give another --out"
        )


def overfitting_report(validation: Sequence[Mapping[str, float]], trained: float) -> str:
    """Say where a run was best, if what is held out costs much more at its end; else nothing.

    ``trained`` is what the last batch of training images cost, in bits/dim: where it is no less
    than the least of what is held out, nothing was learned by heart.
    """
    if not validation or math.isnan(trained):  # of a resumed run that was done
        return ""
    best = min(validation, key=lambda one: one["bits_per_dim"])
    least, now, step = best["bits_per_dim"], validation[-1]["bits_per_dim"], best["step"]
    if _BITS <= now == least < 2 * _BITS:
        return (
            f"\nit has learned little so far: what is held out costs {now:,.3f} bits/dim, and "
            f"{_BITS} where every value is guessed alike; train for more --steps"
        )
    if least >= _BITS:
        return (
            f"\nit has learned nothing: what is held out costs {now:,.3f} bits/dim, and {_BITS} "
            "where every value is guessed alike; train in another folder at a lower "
            "--learning-rate and --muon-rate"
        )
    if now < least + _BY_HEART:
        return ""
    if trained > least + _BY_HEART:
        return (
            f"\nit has lost what it had learned: what is held out cost {least:.3f} bits/dim at "
            f"step {step:,.0f}, and costs {now:.3f} now; train in another folder at a lower "
            "--learning-rate and --muon-rate"
        )
    return (
        f"\nit learns its pictures by heart: what is held out cost {least:.3f} bits/dim at step "
        f"{step:,.0f}, and costs {now:.3f} now; train on more pictures, or in another folder with "
        f"--steps {step:.0f}"
    )


def _counted(data: Dataset, validation: Dataset | None) -> str:
    held_out, classes = len(validation or ()), len(data.classes)
    of = f" in {classes} class{'es' if classes > 1 else ''}" if classes else ""
    return f"{len(data) + held_out:,} images{of}, {held_out:,} held out"


@dataclass(frozen=True, kw_only=True)
class Run:
    """What to train, how, and where; new, resumed, or resumed with a checkpoint's weights."""

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
        """Train to the end or to Ctrl-C, and say how far it came; only the first process does.

        On so many ``processes``, or as many as suit the machine (``choose_process_count``).
        """
        count = choose_process_count(self.training_config.batch, processes)
        asked = StopSignal(sys.stderr.write)
        with (
            ignore_closed_output(),
            asked.handling_signals() as stop,
            self._locked(),  # before others read what is to be resumed
            process_group(count, self._help, data) as device,
        ):
            trainer = self._trainer(device)
            if trainer.train_state.rank == 0:
                sys.stderr.write(f"{_counted(data, validation)}\n")
            trainer.train(data, validation, stop, quiet=False, after_validation=after_validation)
        where = f"{trainer.step:,} of {self.training_config.steps:,} steps; {trainer.weights}"
        if trainer.train_state.rank > 0:
            return ""
        if trainer.step == 0:
            return "stopped before the first step: nothing was kept"
        done = trainer.step == self.training_config.steps
        said = f"done: {where}" if done else f"stopped at {where}; --resume goes on"
        return said + overfitting_report(trainer.validation, trainer.bits)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Have the folder, as the first process does for all."""
        if int(os.environ.get("RANK", 0)) > 0:  # of torchrun's processes; others are resumed later
            yield
            return
        with run_lock(self.folder):
            if not self.resume:  # another may have resumed, and ended, since the folder was chosen
                _check_free(self.folder)
            yield

    def _help(self, device: torch.device, data: Dataset) -> None:
        """Take another process's share of every batch."""
        self._trainer(device).train(data, None, StopSignal(), quiet=True)

    def _trainer(self, device: torch.device) -> Trainer:
        trainer = Trainer(self.network, self.training_config, self.folder, device)
        if self.resume:
            trainer.resume()
        elif self.start_from:
            trainer.start_from(self.start_from)
        return trainer
