"""Tables 1 and 2: bits/dim of each kind of attention over training time and images seen.

Their images/s are those of the supplement's experiment (``latency.py``).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from scanline.model.paper.budget import Marks
from scanline.model.paper.experiment import Experiment, Mode, Rows, UnitRun
from scanline.model.paper.image_training import KINDS, MEASURED_MAPS, ImageTableSettings, train_one
from scanline.model.paper.markdown import duration, markdown_table, network, number
from scanline.model.paper.published import IMAGES
from scanline.model.paper.report import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


class _ImageTable(Experiment[ImageTableSettings]):
    def __init__(self, name: str, title: str, presets: dict[Mode, ImageTableSettings]) -> None:
        super().__init__(presets)
        self.name, self.title = name, title

    def units(self, settings: ImageTableSettings) -> list[str]:
        return list(settings.kinds)

    def rows(self, run: UnitRun[ImageTableSettings]) -> Rows:
        yield (
            f"train {run.unit}",
            partial(train_one, run.settings, run.unit, run.report, run.data_dir, run.device),
        )

    def caption(self, s: Row) -> str:
        length = _length(s["seconds"], s["epochs"])
        paper = _length(self.presets["full"].seconds, self.presets["full"].epochs)
        if paper != length:
            length += f" (in the paper {paper})"
        optimizer = (
            f"RAdam at a constant rate of {s['learning_rate']:g}, as in the paper"
            if s["muon_rate"] is None
            else f"Muon at a constant rate of {s['muon_rate']:g} and AdamW at "
            f"{s['learning_rate']:g} after a warm-up of 100 steps, the same for all kinds, and a "
            "moving average of the weights, where the paper uses RAdam"
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
        maps = (
            f" {' and '.join(f'`{kind}`' for kind in MEASURED_MAPS)} are linear attention with "
            "other [feature maps](training.md#kinds-of-attention), which the paper did not measure."
            if set(MEASURED_MAPS) & set(s["kinds"])
            else ""
        )
        return (
            f"Each kind is trained for {length} on whole images ({network(s)}, {batch}, LSH "
            f"chunks of {s['lsh_chunk']}; {optimizer}). {neighbours}Bits/dim are on "
            f"the first {s['mark_images']:,} test images, and at the end on {s['test_images']:,}, "
            f"with their standard error.{maps} The curves show the loss of the training batches, "
            "dots the bits/dim of test images. A table of pairs, which predicts each value from "
            "the previous one by counts in the training images, has "
            f"{pair_bits(s['data'], s['mark_images']):.3f} and "
            f"{pair_bits(s['data'], s['test_images']):.3f} bits/dim on these test images; "
            "likelihoods are compared only once a kind is better. Matrix products of the training "
            "are in bfloat16 if the machine has instructions for it, the test is in float32."
        )

    def table(self, rows: dict[str, Row]) -> str:
        # The paper's kinds are compared. A training that has hardly begun, or a slow feature map,
        # has no late marks in common with them.
        published = IMAGES[self.name]
        compared = {
            key: row for key, row in rows.items()
            if row["kind"] in published and row["seconds"] >= ENOUGH
        } or rows  # fmt: skip
        images, seconds = (common_mark(compared, mark) for mark in ("images_seen", "second_mark"))
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
    "n_heads": 8, "d_model": 256, "learning_rate": 1e-4, "muon_rate": None,
    "test_images": 10_000, "mark_images": 1000, "marks": Marks(step=1000, second=3600),
}  # fmt: skip
_QUICK: dict[str, Any] = {
    "n_layers": 2, "n_heads": 2, "d_model": 64, "learning_rate": 2e-3, "muon_rate": 0.02,
    "lsh_chunk": 32, "test_images": 20, "mark_images": 10, "marks": Marks(step=20, second=5),
}  # fmt: skip

TABLE1 = _ImageTable(
    "table1", "Table 1: MNIST",
    {
        "quick": ImageTableSettings(
            data="mnist", batch=4, softmax_batch=4, seconds=45, kinds=(*KINDS, *MEASURED_MAPS),
            **_QUICK,
        ),
        "default": ImageTableSettings(
            # With twice these rates, the loss of linear attention jumps.
            data="mnist", n_layers=4, n_heads=4, d_model=128, learning_rate=1e-3, muon_rate=0.01,
            batch=8, softmax_batch=8, lsh_chunk=32, seconds=2700, test_images=1000, mark_images=250,
            marks=Marks(step=125, second=75), kinds=(*KINDS, *MEASURED_MAPS),
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
            data="cifar10", neighbours=True, n_layers=4, n_heads=2, d_model=64, learning_rate=2e-3,
            muon_rate=0.02, batch=4, softmax_batch=4, lsh_chunk=32, seconds=2700, test_images=400,
            mark_images=100, marks=Marks(step=125, second=75),
        ),
        "full": ImageTableSettings(
            data="cifar10", n_layers=16, batch=4, softmax_batch=1, lsh_chunk=37,
            seconds=7 * 86400, **_PAPER,
        ),
    },
)  # fmt: skip
