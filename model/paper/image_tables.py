"""Tables 1 and 2, and the supplement's: bits/dim of each kind, and how fast each one draws.

The networks that are timed are the paper's. The ones that are trained are those too, or smaller
ones; all for as many steps as fit into the same time, which a step's own time is measured for.
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
class ImageTable:
    """What a table takes: a data set, the networks, the time for each, and what is drawn.

    ``crop`` is the side of the middle of the images that the trained networks see; ``positions``
    and the batches are those of ``time_sampling``.
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
    anew_batches: tuple[int, ...]

    @property
    def drawn(self) -> ModelConfig:
        """The paper's network, which is timed."""
        return PRESETS[f"{self.data}-paper"]

    @property
    def trained(self) -> ModelConfig:
        """The network that is trained."""
        return replace(
            self.drawn, height=self.crop, width=self.crop, n_layers=self.n_layers,
            n_heads=self.n_heads, d_model=self.d_model, d_ff=4 * self.d_model,
        )  # fmt: skip


def cropped(data: Dataset, side: int, count: int | None = None) -> Dataset:
    """Give the middle ``side`` × ``side`` of the first ``count`` images, all by default."""
    top, left = ((size - side) // 2 for size in data.images.shape[1:3])
    images = data.images[:count, top : top + side, left : left + side].copy()
    return replace(data, images=images, labels=None, classes=())


def train_one(
    table: ImageTable, kind: str, folder: Path, data_dir: Path | None, device: torch.device,
    report: Report,
) -> Row:  # fmt: skip
    """Train one kind for the table's time, and measure it on test images.

    The run's folder goes on from where it was broken off.
    """
    config = ModelConfig.from_dict(table.trained.to_dict() | {"attention": kind})
    data = cropped(load_dataset(table.data, "train", data_dir), table.crop)
    test = cropped(load_dataset(table.data, "test", data_dir), table.crop, table.test_images)
    pace = report.row(
        f"pace {kind}", lambda: {"seconds": _step_seconds(config, table, data, device)}
    )
    steps = max(1, round(table.training_seconds / pace["seconds"]))
    trainer = Trainer(config, _recipe(table, steps), folder, device)
    if (folder / "training.pt").exists():
        trainer.resume()
    with StopSignal().handling_signals() as stop:
        trainer.train(data, None, stop, quiet=False)
    if stop.requested:
        raise KeyboardInterrupt
    result = evaluate(trainer.train_state.ema.eval(), test, batch=8, device=device)
    return {"kind": kind, "steps": steps, "images_seen": steps * table.batch} | asdict(result)


def _recipe(table: ImageTable, steps: int) -> TrainingConfig:
    return TrainingConfig(steps=steps, batch=table.batch, warmup=min(100, steps // 5))


def _step_seconds(
    config: ModelConfig, table: ImageTable, data: Dataset, device: torch.device
) -> float:
    """Time the run's own step, whatever it computes in, on a network that is thrown away."""
    images = torch.from_numpy(data.images.reshape(len(data), -1, data.images.shape[-1]))
    # How many steps there are changes the learning rate, not what a step takes.
    train_state = TrainState(config, _recipe(table, 1000), device)
    with frozen_gc():
        train_state.take_step(images, None)  # the first one makes what the others find there
        return timed(lambda: train_state.take_step(images, None), device, repeats=3)


class _Images(Experiment[ImageTable]):
    def __init__(self, name: str, title: str, full: ImageTable, quick: ImageTable) -> None:
        self.name, self.title, self.full, self.quick = name, title, full, quick

    def rows(
        self, settings: ImageTable, report: Report, data_dir: Path | None, device: torch.device
    ) -> Rows:
        """Give ``train KIND``, then ``draw WAY BATCH``.

        Raises ``ValueError`` where a kind's folder holds a run of another report, whose pace was
        other.
        """
        folders = {kind: report.folder / kind for kind in TRAINED}
        for kind, folder in folders.items():
            if f"pace {kind}" not in report.rows and (folder / "training.pt").exists():
                raise ValueError(
                    f"{folder} holds a training run that {report.path} does not know: "
                    "give another --out, or delete that folder"
                )
        for kind, folder in folders.items():
            train = partial(train_one, settings, kind, folder, data_dir, device, report)
            yield f"train {kind}", train
        for way in sampling_methods(device):
            for batch in settings.anew_batches if way in RECOMPUTED else settings.stateful_batches:
                yield (
                    f"draw {way} {batch}",
                    partial(time_sampling, way, settings.drawn, batch, settings.positions, device),
                )

    def caption(self, s: Row) -> str:
        return (
            f"Each kind trained for {s['training_seconds']:g} seconds ({network(s)}, images cut to "
            f"{s['crop']} × {s['crop']}, batches of {s['batch']}), bits/dim ± standard error on "
            f"{s['test_images']:,} test images. Images/s are those of the paper's own network "
            f"with random weights, each at its best of a few batch sizes; {timing_note(s)} What an "
            "`lsh` position sees depends on where later ones fall, so its bits/dim are not quite a "
            "likelihood."
        )

    def table(self, rows: dict[str, Row]) -> str:
        ours = {row["kind"]: row for row in trained(rows)}
        best, claims = best_drawing(rows), IMAGES[self.name]
        softmax = claims["softmax"].images_per_second
        lines = []
        for way, drawn in best.items():
            claim, learned = claims.get(way), ours.get(way.removeprefix("stateful-"))
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
            "kind", "bits/dim, paper", "ours", "images trained on", "images/s, paper", "ours",
            "at once",
        ]  # fmt: skip
        return markdown_table(head, lines)

    def verdicts(self, rows: dict[str, Row]) -> Iterable[Verdict]:
        data, claims = {"mnist": "MNIST", "cifar10": "CIFAR-10"}[self.full.data], IMAGES[self.name]
        best = {way: row["images_per_second"] for way, row in best_drawing(rows).items()}
        order = ("linear", "stateful-softmax", "softmax", "lsh-1", "lsh-4")
        if all(way in best for way in order):
            found = " : ".join(number(best[way] / best["softmax"]) for way in order)
            theirs = " : ".join(
                number(claims[way].images_per_second / claims["softmax"].images_per_second)
                for way in order
            )
            yield Verdict(
                f"{data} is drawn fastest by linear, then stateful-softmax, then the rest "
                f"(images/s as {', '.join(order)}: {theirs})", found,
                best["linear"] > best["stateful-softmax"] > max(best[way] for way in order[2:]),
            )  # fmt: skip
        bits = {row["kind"]: row["bits_per_dim"] for row in trained(rows)}
        found = ", ".join(f"{kind} {value:.3f}" for kind, value in bits.items())
        if {"linear", "softmax", "lsh-1", "lsh-4"} <= bits.keys() and self.full.data == "mnist":
            yield Verdict(
                f"{data}: linear's bits/dim come near to softmax's and below lsh's", found,
                bits["linear"] < min(bits["lsh-1"], bits["lsh-4"])
                and bits["linear"] < 1.05 * bits["softmax"],
            )  # fmt: skip
        elif {"linear", "softmax"} <= bits.keys():
            yield Verdict(
                f"{data}: in the same time linear reaches fewer bits/dim than softmax", found,
                bits["linear"] < bits["softmax"],
            )  # fmt: skip

    def plot(self, figure: Figure, rows: dict[str, Row]) -> None:
        left, right = figure.subplots(1, 2)
        best = best_drawing(rows).values()
        left.barh([label(row) for row in best], [row["images_per_second"] for row in best])
        left.set_xscale("log")
        left.set_xlabel("images a second")
        ours = trained(rows)
        right.barh(
            [row["kind"] for row in ours], [row["bits_per_dim"] for row in ours],
            xerr=[row["standard_error"] for row in ours],
        )  # fmt: skip
        right.set_xlabel("bits/dim, less is better")
        for axes in (left, right):
            axes.grid(alpha=0.3, axis="x")


def best_drawing(rows: dict[str, Row]) -> dict[str, Row]:
    """Give each way's fastest batch of a table's rows."""
    best: dict[str, Row] = {}
    for key, row in rows.items():
        if key.startswith("draw "):
            before = best.get(row["way"])
            if before is None or row["images_per_second"] > before["images_per_second"]:
                best[row["way"]] = row
    return best


def _speed(speed: float, softmax: float) -> str:
    return f"{number(speed)} ({number(speed / softmax)} ×)"


_PAPER: dict[str, Any] = {"n_heads": 8, "d_model": 256, "batch": 10, "test_images": 10_000}
_SMALL: dict[str, Any] = {"n_layers": 2, "n_heads": 4, "d_model": 64, "batch": 8}

TABLE1 = _Images(
    "table1", "Table 1: MNIST",
    full=ImageTable(
        data="mnist", n_layers=8, crop=28, training_seconds=86400, positions=29,
        stateful_batches=(1, 16, 64, 256), anew_batches=(1, 16), **_PAPER,
    ),
    quick=ImageTable(
        data="mnist", crop=28, training_seconds=60, positions=3, test_images=100,
        stateful_batches=(1, 64), anew_batches=(1,), **_SMALL,
    ),
)  # fmt: skip
TABLE2 = _Images(
    "table2", "Table 2: CIFAR-10",
    full=ImageTable(
        data="cifar10", n_layers=16, crop=32, training_seconds=7 * 86400, positions=33,
        stateful_batches=(1, 16, 64), anew_batches=(1, 4), **_PAPER | {"batch": 4},
    ),
    quick=ImageTable(
        data="cifar10", crop=16, training_seconds=180, positions=3, test_images=100,
        stateful_batches=(1, 16), anew_batches=(1,), **_SMALL,
    ),
)  # fmt: skip
