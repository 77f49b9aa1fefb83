"""Tables 1 and 2: bits/dim and sampling speed of each kind of attention.

The paper's networks are timed. The trained networks are the paper's (full settings) or smaller ones
(quick settings); each is trained for the same time, whose number of steps follows from the measured
time of a step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from scanline.model.config import PRESETS, ModelConfig
from scanline.model.data.dataset import Dataset, load_dataset
from scanline.model.evaluation.likelihood import evaluate
from scanline.model.paper.claims import IMAGES
from scanline.model.paper.experiment import Experiment, Rows, Verdict
from scanline.model.paper.markdown import markdown_table, network, number
from scanline.model.paper.report import Report, Row, timed, trained
from scanline.model.paper.sampling_speed import (
    RECOMPUTED,
    label,
    sampling_methods,
    time_sampling,
    timing_note,
)
from scanline.model.training.config import TrainingConfig
from scanline.model.training.host_tuning import frozen_gc
from scanline.model.training.stop_signal import StopSignal
from scanline.model.training.train_state import TrainState
from scanline.model.training.trainer import Trainer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TRAINED = ("softmax", "lsh-1", "lsh-4", "linear")


@dataclass(frozen=True, kw_only=True)
class ImageTableSettings:
    """Settings of a table.

    Args:
        data: data set.
        n_layers: layers of the trained networks.
        n_heads: heads of the trained networks.
        d_model: width of the trained networks.
        crop: side of the image center that the trained networks see.
        training_seconds: training time of each network.
        test_images: number of images to measure bits/dim on.
        batch: batch size of the training.
        positions: number of positions at which a sampling step is timed.
        stateful_batches: batch sizes to time for methods that keep a state.
        recomputed_batches: batch sizes to time for methods that recompute the network.
    """

    data: str
    n_layers: int
    n_heads: int
    d_model: int
    crop: int
    training_seconds: float
    test_images: int
    batch: int
    positions: int
    stateful_batches: tuple[int, ...]
    recomputed_batches: tuple[int, ...]

    @property
    def timed_network(self) -> ModelConfig:
        """The paper's network, whose sampling is timed."""
        return PRESETS[f"{self.data}-paper"]

    @property
    def trained_network(self) -> ModelConfig:
        """The network that is trained."""
        return replace(
            self.timed_network, height=self.crop, width=self.crop, n_layers=self.n_layers,
            n_heads=self.n_heads, d_model=self.d_model, d_ff=4 * self.d_model,
        )  # fmt: skip


def crop_center(data: Dataset, side: int, count: int | None = None) -> Dataset:
    """Crop the center ``side`` × ``side`` of the first ``count`` images, or of all."""
    top, left = ((size - side) // 2 for size in data.images.shape[1:3])
    images = data.images[:count, top : top + side, left : left + side].copy()
    return replace(data, images=images, labels=None, classes=())


def train_one(
    table: ImageTableSettings, kind: str, folder: Path, data_dir: Path | None, device: torch.device,
    report: Report,
) -> Row:  # fmt: skip
    """Train one kind of attention for the table's time, and return its row.

    An interrupted run in ``folder`` is resumed.
    """
    config = ModelConfig.from_dict(table.trained_network.to_dict() | {"attention": kind})
    data = crop_center(load_dataset(table.data, "train", data_dir), table.crop)
    test = crop_center(load_dataset(table.data, "test", data_dir), table.crop, table.test_images)
    pace = report.row(
        f"pace {kind}", lambda: {"seconds": _step_seconds(config, table, data, device)}
    )
    steps = max(1, round(table.training_seconds / pace["seconds"]))
    trainer = Trainer(config, _training_config(table, steps), folder, device)
    if (folder / "training.pt").exists():
        trainer.resume()
    with StopSignal().handling_signals() as stop:
        trainer.train(data, None, stop, quiet=False)
    if stop.requested:
        raise KeyboardInterrupt
    result = evaluate(trainer.train_state.ema.eval(), test, batch=8, device=device)
    return {"kind": kind, "steps": steps, "images_seen": steps * table.batch} | asdict(result)


def _training_config(table: ImageTableSettings, steps: int) -> TrainingConfig:
    return TrainingConfig(steps=steps, batch=table.batch, warmup=min(100, steps // 5))


def _step_seconds(
    config: ModelConfig, table: ImageTableSettings, data: Dataset, device: torch.device
) -> float:
    """Time the training step of the run on a temporary network."""
    images = torch.from_numpy(data.images.reshape(len(data), -1, data.images.shape[-1]))
    # The number of steps changes the learning rate but not the time of a step.
    train_state = TrainState(config, _training_config(table, 1000), device)
    with frozen_gc():
        train_state.take_step(images, None)  # warm-up
        return timed(lambda: train_state.take_step(images, None), device, repeats=3)


class _ImageExperiment(Experiment[ImageTableSettings]):
    def __init__(
        self, name: str, title: str, full: ImageTableSettings, quick: ImageTableSettings
    ) -> None:
        self.name, self.title, self.full, self.quick = name, title, full, quick

    def rows(
        self,
        settings: ImageTableSettings,
        report: Report,
        data_dir: Path | None,
        device: torch.device,
    ) -> Rows:
        """Yield ``train KIND``, then ``draw METHOD BATCH``.

        Raises:
            ValueError: a kind's folder holds a run of another report, whose step time is unknown.
        """
        folders = {kind: report.folder / kind for kind in TRAINED}
        for kind, folder in folders.items():
            if f"pace {kind}" not in report.rows and (folder / "training.pt").exists():
                raise ValueError(
                    f"{folder} holds a training run that is not in {report.path}: choose another "
                    "folder with --out, or delete that folder"
                )
        for kind, folder in folders.items():
            train = partial(train_one, settings, kind, folder, data_dir, device, report)
            yield f"train {kind}", train
        for method in sampling_methods(device):
            recomputed, stateful = settings.recomputed_batches, settings.stateful_batches
            for batch in recomputed if method in RECOMPUTED else stateful:
                config, positions = settings.timed_network, settings.positions
                yield (
                    f"draw {method} {batch}",
                    partial(time_sampling, method, config, batch, positions, device),
                )

    def caption(self, s: Row) -> str:
        return (
            f"Each kind of attention was trained for {s['training_seconds']:g} seconds "
            f"({network(s)}, images cropped to {s['crop']} × {s['crop']}, batch size {s['batch']})."
            f" Bits/dim are given with their standard error on {s['test_images']:,} test images. "
            "Images/s are measured with the paper's network and random weights, at the best of a "
            f"few batch sizes. {timing_note(s)} The output of `lsh` at a position depends on the "
            "buckets of later positions, so its bits/dim are not exactly a likelihood."
        )

    def table(self, rows: dict[str, Row]) -> str:
        ours = {row["kind"]: row for row in trained(rows)}
        best, claims = best_sampling(rows), IMAGES[self.name]
        softmax = claims["softmax"].images_per_second
        lines = []
        for method, drawn in best.items():
            claim, learned = claims.get(method), ours.get(method.removeprefix("stateful-"))
            lines.append([
                label(drawn),
                number(claim.bits_per_dim) if claim else "–",
                f"{learned['bits_per_dim']:.3f} ± {learned['standard_error']:.3f}"
                if learned else "–",
                f"{learned['images_seen']:,}" if learned else "–",
                _speed(claim.images_per_second, softmax) if claim else "–",
                _speed(drawn["images_per_second"], best["softmax"]["images_per_second"]),
                str(drawn["batch"]),
            ])  # fmt: skip
        head = [
            "attention", "bits/dim, paper", "ours", "images seen", "images/s, paper", "ours",
            "batch size",
        ]  # fmt: skip
        return markdown_table(head, lines)

    def verdicts(self, rows: dict[str, Row]) -> Iterable[Verdict]:
        data, claims = {"mnist": "MNIST", "cifar10": "CIFAR-10"}[self.full.data], IMAGES[self.name]
        best = {method: row["images_per_second"] for method, row in best_sampling(rows).items()}
        order = ("linear", "stateful-softmax", "softmax", "lsh-1", "lsh-4")
        if all(method in best for method in order):
            found = " : ".join(number(best[method] / best["softmax"]) for method in order)
            theirs = " : ".join(
                number(claims[method].images_per_second / claims["softmax"].images_per_second)
                for method in order
            )
            yield Verdict(
                f"{data}: linear samples fastest, then stateful-softmax, then the others "
                f"(images/s relative to softmax for {', '.join(order)}: {theirs})", found,
                best["linear"] > best["stateful-softmax"] > max(best[name] for name in order[2:]),
            )  # fmt: skip
        bits = {row["kind"]: row["bits_per_dim"] for row in trained(rows)}
        found = ", ".join(f"{kind} {value:.3f}" for kind, value in bits.items())
        if {"linear", "softmax", "lsh-1", "lsh-4"} <= bits.keys() and self.full.data == "mnist":
            yield Verdict(
                f"{data}: the bits/dim of linear are close to softmax and below lsh", found,
                bits["linear"] < min(bits["lsh-1"], bits["lsh-4"])
                and bits["linear"] < 1.05 * bits["softmax"],
            )  # fmt: skip
        elif {"linear", "softmax"} <= bits.keys():
            yield Verdict(
                f"{data}: linear reaches lower bits/dim than softmax in the same time", found,
                bits["linear"] < bits["softmax"],
            )  # fmt: skip

    def plot(self, figure: Figure, rows: dict[str, Row]) -> None:
        left, right = figure.subplots(1, 2)
        best = best_sampling(rows).values()
        left.barh([label(row) for row in best], [row["images_per_second"] for row in best])
        left.set_xscale("log")
        left.set_xlabel("images/s")
        ours = trained(rows)
        right.barh(
            [row["kind"] for row in ours], [row["bits_per_dim"] for row in ours],
            xerr=[row["standard_error"] for row in ours],
        )  # fmt: skip
        right.set_xlabel("bits/dim (lower is better)")
        for axes in (left, right):
            axes.grid(alpha=0.3, axis="x")


def best_sampling(rows: dict[str, Row]) -> dict[str, Row]:
    """Return each method's row with the highest images/s."""
    best: dict[str, Row] = {}
    for key, row in rows.items():
        if key.startswith("draw "):
            before = best.get(row["method"])
            if before is None or row["images_per_second"] > before["images_per_second"]:
                best[row["method"]] = row
    return best


def _speed(speed: float, softmax: float) -> str:
    return f"{number(speed)} ({number(speed / softmax)} ×)"


_PAPER: dict[str, Any] = {"n_heads": 8, "d_model": 256, "batch": 10, "test_images": 10_000}
_SMALL: dict[str, Any] = {"n_layers": 2, "n_heads": 4, "d_model": 64, "batch": 8}

TABLE1 = _ImageExperiment(
    "table1", "Table 1: MNIST",
    full=ImageTableSettings(
        data="mnist", n_layers=8, crop=28, training_seconds=86400, positions=29,
        stateful_batches=(1, 16, 64, 256), recomputed_batches=(1, 16), **_PAPER,
    ),
    quick=ImageTableSettings(
        data="mnist", crop=28, training_seconds=60, positions=3, test_images=100,
        stateful_batches=(1, 64), recomputed_batches=(1,), **_SMALL,
    ),
)  # fmt: skip
TABLE2 = _ImageExperiment(
    "table2", "Table 2: CIFAR-10",
    full=ImageTableSettings(
        data="cifar10", n_layers=16, crop=32, training_seconds=7 * 86400, positions=33,
        stateful_batches=(1, 16, 64), recomputed_batches=(1, 4), **_PAPER | {"batch": 4},
    ),
    quick=ImageTableSettings(
        data="cifar10", crop=16, training_seconds=180, positions=3, test_images=100,
        stateful_batches=(1, 16), recomputed_batches=(1,), **_SMALL,
    ),
)  # fmt: skip
