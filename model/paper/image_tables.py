"""Tables 1 and 2: bits/dim of each kind of attention over training time and images seen.

Their images/s are those of the supplement's experiment (``latency.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from scanline.model.config import PRESETS, ModelConfig
from scanline.model.data.dataset import Dataset
from scanline.model.data.published_sets import load_dataset
from scanline.model.evaluation.likelihood import evaluate
from scanline.model.network import LinearTransformer
from scanline.model.paper.budget import Budget, History, Marks, train
from scanline.model.paper.experiment import Experiment, Mode, Rows
from scanline.model.paper.kinds import attention_config
from scanline.model.paper.markdown import duration, markdown_table, network, number
from scanline.model.paper.published import IMAGES
from scanline.model.paper.report import Report, Row
from scanline.model.training.config import TrainingConfig
from scanline.model.training.train_state import TrainState

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("linear", "softmax", "lsh-1", "lsh-4")  # the paper's
FEATURE_MAPS = ("inhomogeneous", "fourier")  # linear attention with other feature maps


@dataclass(frozen=True, kw_only=True)
class ImageTableSettings:
    """Settings of a table.

    Attributes:
        data: Data set.
        neighbours: Whether a step sees the 17 pixels around it that come earlier; otherwise it sees
            the previous value only, as in the paper.
        n_layers: Layers of the networks.
        n_heads: Heads of the networks.
        d_model: Width of the networks.
        optimizer: ``muon`` for Muon and AdamW and a moving average of the weights, ``radam`` for
            the paper's RAdam.
        learning_rate: Learning rate of RAdam.
        batch: Images per step.
        softmax_batch: Images per step of softmax attention.
        lsh_chunk: Positions per chunk of LSH attention.
        seconds: Training time of each kind; None for no limit.
        epochs: Passes over the training images; None for no limit.
        test_images: Number of test images that bits/dim are measured on at the end.
        mark_images: Number of test images that they are measured on before.
        marks: When bits/dim are measured.
        kinds: Kinds of attention, and of feature maps.
    """

    data: str
    neighbours: bool = False
    n_layers: int
    n_heads: int
    d_model: int
    optimizer: str = "muon"
    learning_rate: float = 1e-4
    batch: int
    softmax_batch: int
    lsh_chunk: int
    seconds: float | None
    epochs: int | None = None
    test_images: int
    mark_images: int
    marks: Marks
    kinds: tuple[str, ...] = KINDS

    def network(self, kind: str) -> ModelConfig:
        """Return the network of a kind of attention."""
        changed: Row = {"attention": "linear", "feature_map": kind}
        if kind not in FEATURE_MAPS:
            changed = attention_config(kind, lsh_chunk=self.lsh_chunk)
        if self.neighbours:
            changed |= {"input": "neighbourhood", "encoding": "linear"}
        preset = replace(
            PRESETS[f"{self.data}-paper"], n_layers=self.n_layers, n_heads=self.n_heads,
            d_model=self.d_model, d_ff=4 * self.d_model,
        )  # fmt: skip
        return ModelConfig.from_dict(preset.to_dict() | changed)


# Bits/dim of the first N test images by a table of pairs: each value is predicted from the previous
# one, and from its channel, by counts in the training set. A network that is not better has learned
# little.
PAIR_BITS = {
    "mnist": {250: 1.381, 1000: 1.393, 10_000: 1.420},
    "cifar10": {100: 6.643, 400: 6.653, 1000: 6.674, 10_000: 6.674},
}
ENOUGH = 600  # seconds of training, below which networks are not compared


def pair_bits(data: str, images: int) -> float:
    """Return the bits/dim of a table of pairs on about as many of the first test images."""
    counts = PAIR_BITS[data]
    return counts[max((count for count in counts if count <= images), default=min(counts))]


class ImageTraining:
    """Training of one network, on the same images in the same order for every kind."""

    def __init__(
        self, table: ImageTableSettings, kind: str, data: Dataset, device: torch.device
    ) -> None:
        self.batch = table.softmax_batch if kind == "softmax" else table.batch
        plain = table.optimizer == "radam"
        warmup = 0 if plain else 100
        # The rates stay constant, so that every point of a curve compares finished trainings.
        config = TrainingConfig(steps=2**62, batch=self.batch, warmup=warmup, decay=0.0)
        self.state = TrainState(table.network(kind), config, device)
        if plain:
            rate = table.learning_rate
            group = {"params": list(self.state.model.parameters()), "rate": rate}
            self.state.optimizers = [torch.optim.RAdam([group], lr=rate)]
        self.plain = plain
        self.images = torch.from_numpy(data.images.reshape(len(data), -1, data.images.shape[-1]))

    @property
    def network(self) -> LinearTransformer:
        """The network to evaluate: the moving average with Muon, as trained with RAdam."""
        return self.state.model if self.plain else self.state.ema

    def take_step(self) -> float:
        """Train on the next batch and return its bits/dim."""
        return self.state.take_step(self.images, None)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of ``TrainState``."""
        return self.state.state_dict()

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore a ``state_dict``."""
        self.state.load_state_dict(saved)


def unlabelled(data: Dataset, count: int | None = None) -> Dataset:
    """Return the first ``count`` images, or all, without their labels."""
    return replace(data, images=data.images[:count].copy(), labels=None, classes=())


def train_one(
    table: ImageTableSettings,
    kind: str,
    report: Report,
    data_dir: Path | None,
    device: torch.device,
) -> Row:
    """Train one kind of attention and return its row.

    The row has the curves of ``budget.History``, whose evaluations have the ``images_seen``, and
    the ``bits_per_dim`` of the test images with their ``standard_error``. ``image_bits`` are the
    bits/dim of each test image, to compare kinds on the same images.
    """
    data = unlabelled(load_dataset(table.data, "train", data_dir))
    test = load_dataset(table.data, "test", data_dir)
    run = ImageTraining(table, kind, data, device)

    def measure(last: bool) -> Row:
        images = unlabelled(test, table.test_images if last else table.mark_images)
        result = evaluate(run.network, images, device=device)
        each = [round(one, 4) for one in result.each.tolist()]
        return {"images_seen": run.state.step * run.batch, "image_bits": each} | result.row()

    def row(history: History) -> Row:
        facts = {"kind": kind, "batch": run.batch, "bf16": run.state.bf16}
        return facts | history.row()

    history = train(
        run,
        Budget(seconds=table.seconds, steps=table.epochs and table.epochs * len(data) // run.batch),
        report.folder,
        settings=report.facts["settings"],
        evaluate=measure,
        marks=table.marks,
        point_steps=max(1, table.marks.step // 4),
        device=device,
        publish=lambda history: report.publish(f"train {kind}", row(history)),
    )
    return row(history)


class _ImageTable(Experiment[ImageTableSettings]):
    def __init__(self, name: str, title: str, presets: dict[Mode, ImageTableSettings]) -> None:
        super().__init__(presets)
        self.name, self.title = name, title

    def units(self, settings: ImageTableSettings) -> list[str]:
        return list(settings.kinds)

    def rows(
        self,
        unit: str,
        settings: ImageTableSettings,
        report: Report,
        data_dir: Path | None,
        device: torch.device,
    ) -> Rows:
        yield f"train {unit}", partial(train_one, settings, unit, report, data_dir, device)

    def caption(self, s: Row) -> str:
        length = _length(s["seconds"], s["epochs"])
        paper = _length(self.presets["full"].seconds, self.presets["full"].epochs)
        if paper != length:
            length += f" (in the paper {paper})"
        optimizer = (
            f"RAdam at a constant rate of {s['learning_rate']:g}, as in the paper"
            if s["optimizer"] == "radam"
            else "Muon and AdamW at constant rates after a warm-up of 100 steps, the same for all "
            "kinds, and a moving average of the weights, where the paper uses RAdam"
        )
        batch = f"batch size {s['batch']}"
        if s["softmax_batch"] != s["batch"]:
            batch += f" (softmax {s['softmax_batch']})"
        neighbours = (
            "A step sees the 17 pixels around it that come earlier, not only the previous value as "
            "in the paper: without them, a small network is no better than a table of pairs "
            "after half an hour. "
            if s["neighbours"]
            else ""
        )
        return (
            f"Each kind is trained for {length} on whole images ({network(s)}, {batch}, LSH "
            f"chunks of {s['lsh_chunk']}; {optimizer}). {neighbours}Bits/dim are on "
            f"the first {s['mark_images']:,} test images, and at the end on {s['test_images']:,}, "
            "with their standard error. The curves show the loss of the training batches, "
            "which repeat no image within an epoch; dots are bits/dim of the test images. The "
            "output of `lsh` at a position depends on the buckets of later positions, so its "
            "bits/dim are not exactly a likelihood. A table of pairs, which predicts each value "
            "from the previous one by counts in the training images, has "
            f"{pair_bits(s['data'], 10_000):.3f} bits/dim on all test images; "
            "likelihoods are compared only once a kind is better. Images/s are in the last "
            "section."
        )

    def table(self, rows: dict[str, Row]) -> str:
        # A training that has hardly begun has no late marks in common with the others.
        trained = {key: row for key, row in rows.items() if row["seconds"] >= ENOUGH} or rows
        images, seconds = (common_mark(trained, mark) for mark in ("images_seen", "second_mark"))
        published = IMAGES[self.name]
        head = ["attention", "bits/dim, paper"]
        if seconds:
            head += [f"ours, after {seconds:,.0f} seconds", "images seen"]
        if images:
            head += [f"ours, after {images:,.0f} images", "seconds"]
        lines = []
        for row in rows.values():
            kind = row["kind"]
            line = [kind, number(published[kind].bits_per_dim) if kind in published else "–"]
            if seconds:
                point = _evaluation(row, "second_mark", seconds)
                line += [_bits(point), f"{point['images_seen']:,}"] if point else ["–", "–"]
            if images:
                point = _evaluation(row, "images_seen", images)
                line += [_bits(point), f"{point['seconds']:,.0f}"] if point else ["–", "–"]
            last = row["evaluations"][-1]
            line.append("–" if row.get("unfinished") else _bits(last))
            lines.append([*line, f"{last['seconds']:,.0f}"])
        return markdown_table([*head, "ours, at the end", "seconds so far"], lines)

    def plot(self, figure: Figure, rows: dict[str, Row]) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        for index, row in enumerate(rows.values()):
            steps, seconds, losses = zip(*row["losses"], strict=True) if row["losses"] else 3 * [()]
            images = [step * row["batch"] for step in steps]
            points = row["evaluations"]
            for axes, x, name in ((left, seconds, "seconds"), (right, images, "images_seen")):
                color = f"C{index}"
                axes.plot(x, losses, color=color, alpha=0.5, linewidth=1)
                axes.plot(
                    [one[name] for one in points], [one["bits_per_dim"] for one in points], "o",
                    color=color, markersize=4, label=row["kind"],
                )  # fmt: skip
        left.set_xlabel("training time, s")
        right.set_xlabel("images seen")
        left.set_ylabel("bits/dim")
        for axes in (left, right):
            axes.set_xscale("log")
            axes.grid(alpha=0.3)
        if lowest := [
            point["bits_per_dim"] for row in rows.values() for point in row["evaluations"]
        ]:
            left.set_ylim(0.97 * min(lowest), 1.03 * max(lowest))
        right.legend(fontsize=8)


def _bits(evaluation: Row) -> str:
    return f"{evaluation['bits_per_dim']:.3f} ± {evaluation['standard_error']:.3f}"


def _length(seconds: float | None, epochs: int | None) -> str:
    return duration(seconds) if seconds else f"{epochs} epochs"


def common_mark(rows: dict[str, Row], mark: str) -> float | None:
    """Return the largest value of a mark at which every kind was evaluated."""
    values = [{one[mark] for one in row["evaluations"] if mark in one} for row in rows.values()]
    return max(set.intersection(*values), default=None) if values else None


def _evaluation(row: Row, mark: str, value: float) -> Row | None:
    """Return the evaluation with this value of a mark, if there is one."""
    return next((one for one in row["evaluations"] if one.get(mark) == value), None)


_PAPER: dict[str, Any] = {
    "n_heads": 8, "d_model": 256, "optimizer": "radam", "test_images": 10_000,
    "mark_images": 1000, "marks": Marks(step=1000, second=3600),
}  # fmt: skip
_QUICK: dict[str, Any] = {
    "n_layers": 2, "n_heads": 2, "d_model": 64, "lsh_chunk": 32, "test_images": 20,
    "mark_images": 10, "marks": Marks(step=20, second=5),
}  # fmt: skip

TABLE1 = _ImageTable(
    "table1", "Table 1: MNIST",
    {
        "quick": ImageTableSettings(
            data="mnist", batch=4, softmax_batch=4, seconds=45, kinds=(*KINDS, *FEATURE_MAPS),
            **_QUICK,
        ),
        "default": ImageTableSettings(
            data="mnist", n_layers=4, n_heads=4, d_model=128, batch=8, softmax_batch=8,
            lsh_chunk=32, seconds=2700, test_images=1000, mark_images=250,
            marks=Marks(step=125, second=75), kinds=(*KINDS, *FEATURE_MAPS),
        ),
        "full": ImageTableSettings(
            data="mnist", n_layers=8, batch=10, softmax_batch=10, lsh_chunk=29, seconds=None,
            epochs=250, **_PAPER,
        ),
    },
)  # fmt: skip
TABLE2 = _ImageTable(
    "table2", "Table 2: CIFAR-10",
    {
        "quick": ImageTableSettings(data="cifar10", batch=1, softmax_batch=1, seconds=45, **_QUICK),
        "default": ImageTableSettings(
            data="cifar10", neighbours=True, n_layers=4, n_heads=2, d_model=64, batch=4,
            softmax_batch=4, lsh_chunk=32, seconds=2700, test_images=400, mark_images=100,
            marks=Marks(step=125, second=75),
        ),
        "full": ImageTableSettings(
            data="cifar10", n_layers=16, batch=4, softmax_batch=1, lsh_chunk=37,
            seconds=7 * 86400, **_PAPER,
        ),
    },
)  # fmt: skip
