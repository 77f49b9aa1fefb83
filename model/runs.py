"""A training run as its user names it: its data, its network, its folder, and its course."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from scanline.model.checkpoint import load_checkpoint
from scanline.model.config import CIFAR10_CLASSES, DIGITS, PRESETS, ModelConfig
from scanline.model.data.folder import load_images
from scanline.model.data.published import Dataset, load_dataset, split_validation
from scanline.model.network import LinearTransformer
from scanline.model.processes import choose_count, joined
from scanline.model.recipe import TrainingConfig
from scanline.model.stop import Stop
from scanline.model.training import Trainer

DEFAULT_SIZE = 28  # pixels a side of a person's own pictures
_FEW_LAYERS = 4  # of a network for a person's own pictures: they are few, and so are the minutes
_BY_HEART = 0.05  # bits/dim above the best that tell a network that learns by heart


def training_data(
    dataset: str | None,
    images: Path | None,
    size: int | None,
    grey: bool,
    hold_out: int,
    data_dir: Path | None,
    download: bool,
) -> tuple[Dataset, Dataset | None]:
    """Read what to train on, and ``hold_out`` images of it to validate on.

    The test set stays out of it. Pictures of a folder are fitted to ``size``, 28 pixels a side if
    None, and at most a tenth of them is held out. Raises ``ValueError`` on an unclear wish.
    """
    if (dataset is None) == (images is None):
        raise ValueError("say what to train on: mnist, cifar10, or --images FOLDER")
    if images is not None:
        if data_dir or download:
            raise ValueError(
                "--data-dir and --download are for mnist and cifar10, not for --images"
            )
        data = load_images(images, size or DEFAULT_SIZE, grey)
        hold_out = min(hold_out, len(data) // 10)
    else:
        if size or grey:
            raise ValueError(f"--size and --grey are for --images; {dataset} has its own")
        if dataset not in PRESETS:
            raise ValueError(f"there is no {dataset!r}; there are {', '.join(PRESETS)}")
        name = str(dataset).removesuffix("-paper")
        data = load_dataset(name, "train", data_dir, download=download)
    return split_validation(data, hold_out, seed=0) if hold_out else (data, None)


def test_data(
    config: ModelConfig,
    dataset: str | None,
    images: Path | None,
    data_dir: Path | None,
    download: bool,
) -> Dataset:
    """Read what to measure a model on: a folder, or the test set named, or that of its classes.

    Raises ``ValueError`` on an unclear wish: digits say nothing of a model of other pictures.
    """
    if images is not None:
        if dataset or data_dir or download:
            raise ValueError(
                "--dataset, --data-dir and --download are for mnist and cifar10, not for --images"
            )
        return load_images(images, (config.height, config.width), config.channels == 1)
    known = {DIGITS: "mnist", CIFAR10_CLASSES: "cifar10"}
    if dataset is None and config.classes not in known:
        raise ValueError("say what to measure on: --images FOLDER, or --dataset mnist or cifar10")
    return load_dataset(dataset or known[config.classes], "test", data_dir, download=download)


def judging_data(
    config: ModelConfig,
    dataset: str | None,
    images: Path | None,
    data_dir: Path | None,
    download: bool,
) -> tuple[Dataset, Dataset]:
    """Read what a judge learns from, and what it compares with: of a folder, nine tenths and one.

    Else the training and the test set of what ``test_data`` would choose.
    """
    test = test_data(config, dataset, images, data_dir, download)
    if images is not None:
        return split_validation(test, 0.1, seed=0)
    return load_dataset(test.name, "train", data_dir, download=download), test


def choose_network(
    preset: str | None,
    data: Dataset,
    layers: int | None = None,
    width: int | None = None,
    heads: int | None = None,
    attention: str | None = None,
    feature_map: str | None = None,
    start_from: Path | None = None,
    begun: ModelConfig | None = None,
) -> ModelConfig:
    """Choose the network: a preset, else the one nearest to the data; changed where asked.

    One that starts from a checkpoint has its sizes, and a run that was ``begun`` goes on with its
    own. A ``width`` changes the feed-forward network's with it, to four times as much. Raises
    ``ValueError`` on what no network can be.
    """
    if begun is not None:
        network = begun
    elif preset is not None:
        network = PRESETS[preset]
    else:
        height, side, channels = data.images.shape[1:]
        nearest = PRESETS["mnist" if channels == 1 else "cifar10"]
        network = replace(
            nearest, height=height, width=side, classes=data.classes, n_layers=_FEW_LAYERS
        )
    if start_from is not None and begun is None:
        start = load_checkpoint(start_from).model.config
        sizes = {name: getattr(start, name) for name in ("n_layers", "d_model", "d_ff", "n_heads")}
        network = replace(network, **sizes)
    d_ff = None if width is None else 4 * width
    changes: dict[str, Any] = {
        "n_layers": layers, "d_model": width, "d_ff": d_ff, "n_heads": heads,
        "attention": attention, "feature_map": feature_map,
    }  # fmt: skip
    return replace(network, **{name: value for name, value in changes.items() if value is not None})


def run_folder(out: Path | None, dataset: str | None, images: Path | None, resume: bool) -> Path:
    """Choose a run's folder, ``runs/`` and the data's name unless told.

    Raises ``ValueError`` where it holds a run that is not to be resumed, or none that is.
    """
    folder = out or Path("runs") / (dataset or (images.resolve().name if images else ""))
    if (folder / "training.pt").exists() != resume:
        raise ValueError(
            f"there is no run to resume in {folder}" if resume else
            f"{folder} already holds a run: add --resume to go on, or give another --out"
        )  # fmt: skip
    return folder


def by_heart(validation: Sequence[Mapping[str, float]]) -> str:
    """Say where a run was best, if what is held out costs much more at its end; else nothing."""
    if not validation:
        return ""
    best = min(validation, key=lambda one: one["bits_per_dim"])
    least, now, step = best["bits_per_dim"], validation[-1]["bits_per_dim"], best["step"]
    if now < least + _BY_HEART:
        return ""
    return (
        f"\nit learns its pictures by heart: what is held out cost {least:.3f} bits/dim at step "
        f"{step:,.0f}, and costs {now:.3f} now; train on more pictures, or in another folder with "
        f"--steps {step:.0f}"
    )


@dataclass(frozen=True, kw_only=True)
class Run:
    """What to train, how, and where; new, resumed, or begun with a checkpoint's weights."""

    network: ModelConfig
    recipe: TrainingConfig
    folder: Path
    resume: bool = False
    start_from: Path | None = None

    def __post_init__(self) -> None:
        if self.resume and self.start_from:
            raise ValueError(
                "--from begins a run, which --resume goes on with: leave one of them out"
            )

    def carry_out(
        self,
        data: Dataset,
        validation: Dataset | None,
        after_validation: Callable[[LinearTransformer, Path], None],
        processes: int | None = None,
    ) -> str:
        """Train to the end or to Ctrl-C, and say how far it came; only the first process does.

        On so many ``processes``, or as many as suit the machine (``choose_count``).
        """
        count = choose_count(self.recipe.batch, processes)
        with Stop().listening() as stop, joined(count, self._help, data) as device:
            trainer = self._trainer(device)
            trainer.train(data, validation, stop, quiet=False, after_validation=after_validation)
        where = f"{trainer.step:,} of {self.recipe.steps:,} steps; {trainer.weights}"
        if trainer.rank > 0:
            return ""
        said = f"stopped at {where}; --resume goes on" if stop.asked else f"done: {where}"
        return said + by_heart(trainer.validation)

    def _help(self, device: torch.device, data: Dataset) -> None:
        """Take another process's share of every batch."""
        self._trainer(device).train(data, None, Stop(), quiet=True)

    def _trainer(self, device: torch.device) -> Trainer:
        trainer = Trainer(self.network, self.recipe, self.folder, device)
        if self.resume:
            trainer.resume()
        elif self.start_from:
            trainer.start_from(self.start_from)
        return trainer
