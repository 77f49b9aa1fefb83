"""Tables 1 and 2, and the supplement's: bits/dim of each kind, and how fast each one draws.

The networks that are timed are the paper's. The ones that are trained are those too, or smaller
ones; all for as many steps as fit into the same time, which a step's own time is measured for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from scanline.model.config import PRESETS, ModelConfig
from scanline.model.data.published import Dataset, load_dataset
from scanline.model.evaluation import evaluate
from scanline.model.paper.drawing import ANEW, time_drawing, ways
from scanline.model.paper.report import Report, Row, timed
from scanline.model.training.machine import few_collections
from scanline.model.training.recipe import TrainingConfig
from scanline.model.training.stop import Stop
from scanline.model.training.trainer import Trainer

TRAINED = ("softmax", "lsh-1", "lsh-4", "linear")


@dataclass(frozen=True, kw_only=True)
class Table:
    """What a table takes: a data set, the networks, the time for each, and what is drawn.

    ``crop`` is the side of the middle of the images that the trained networks see; ``positions``
    and the batches are those of ``time_drawing``.
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


_PAPER: dict[str, Any] = {"n_heads": 8, "d_model": 256, "batch": 10, "test_images": 10_000}
_SMALL: dict[str, Any] = {"n_layers": 2, "n_heads": 4, "d_model": 64, "batch": 8}

FULL = {
    "table1": Table(
        data="mnist", n_layers=8, crop=28, training_seconds=86400, positions=29,
        stateful_batches=(1, 16, 64, 256), anew_batches=(1, 16), **_PAPER,
    ),
    "table2": Table(
        data="cifar10", n_layers=16, crop=32, training_seconds=7 * 86400, positions=33,
        stateful_batches=(1, 16, 64), anew_batches=(1, 4), **_PAPER | {"batch": 4},
    ),
}  # fmt: skip
QUICK = {
    "table1": Table(
        data="mnist", crop=28, training_seconds=60, positions=3, test_images=100,
        stateful_batches=(1, 64), anew_batches=(1,), **_SMALL,
    ),
    "table2": Table(
        data="cifar10", crop=16, training_seconds=180, positions=3, test_images=100,
        stateful_batches=(1, 16), anew_batches=(1,), **_SMALL,
    ),
}  # fmt: skip


def cropped(data: Dataset, side: int, count: int | None = None) -> Dataset:
    """Give the middle ``side`` × ``side`` of the first ``count`` images, all by default."""
    top, left = ((size - side) // 2 for size in data.images.shape[1:3])
    images = data.images[:count, top : top + side, left : left + side].copy()
    return replace(data, images=images, labels=None, classes=())


def rows(
    table: Table, report: Report, data_dir: Path | None, device: torch.device
) -> Iterator[tuple[str, Callable[[], Row]]]:
    """Give each row's key and what makes it: ``train KIND``, then ``draw WAY BATCH``.

    Raises ``ValueError`` where a kind's folder holds a run of another report, whose pace was other.
    """
    folders = {kind: report.folder / kind for kind in TRAINED}
    for kind, folder in folders.items():
        if f"pace {kind}" not in report.rows and (folder / "training.pt").exists():
            raise ValueError(
                f"{folder} holds a training run that {report.path} does not know: "
                "give another --out, or delete that folder"
            )
    for kind, folder in folders.items():

        def train(kind: str = kind, folder: Path = folder) -> Row:
            return train_one(table, kind, folder, data_dir, device, report)

        yield f"train {kind}", train
    for way in ways(device):
        for batch in table.anew_batches if way in ANEW else table.stateful_batches:

            def draw(way: str = way, batch: int = batch) -> Row:
                return time_drawing(way, table.drawn, batch, table.positions, device)

            yield f"draw {way} {batch}", draw


def train_one(
    table: Table, kind: str, folder: Path, data_dir: Path | None, device: torch.device,
    report: Report,
) -> Row:  # fmt: skip
    """Train one kind for the table's time, and measure it on test images.

    The run's folder goes on from where it was broken off.
    """
    network = ModelConfig.from_dict(table.trained.to_dict() | {"attention": kind})
    data = cropped(load_dataset(table.data, "train", data_dir), table.crop)
    test = cropped(load_dataset(table.data, "test", data_dir), table.crop, table.test_images)
    pace = report.row(
        f"pace {kind}", lambda: {"seconds": _step_seconds(network, table, data, device)}
    )
    steps = max(1, round(table.training_seconds / pace["seconds"]))
    trainer = Trainer(network, _recipe(table, steps), folder, device)
    if (folder / "training.pt").exists():
        trainer.resume()
    with Stop().listening() as stop:
        trainer.train(data, None, stop, quiet=False)
    if stop.asked:
        raise KeyboardInterrupt
    result = evaluate(trainer.average.eval(), test, batch=8, device=device)
    return {"kind": kind, "steps": steps, "images_seen": steps * table.batch} | asdict(result)


def _recipe(table: Table, steps: int) -> TrainingConfig:
    return TrainingConfig(steps=steps, batch=table.batch, warmup=min(100, steps // 5))


def _step_seconds(network: ModelConfig, table: Table, data: Dataset, device: torch.device) -> float:
    """Time the run's own step, whatever it computes in, on a network that is thrown away."""
    images = torch.from_numpy(data.images.reshape(len(data), -1, data.images.shape[-1]))
    with TemporaryDirectory() as folder, few_collections():
        # How many steps there are changes the learning rate, not what a step takes.
        trainer = Trainer(network, _recipe(table, 1000), Path(folder), device)
        trainer.take_step(images, None)  # the first one makes what the others find there
        return timed(lambda: trainer.take_step(images, None), device, repeats=3)
