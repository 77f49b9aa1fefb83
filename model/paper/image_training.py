"""Training of networks for tables 1 and 2, which measures their bits/dim on the way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from scanline.model.config import PRESETS, ModelConfig
from scanline.model.data.dataset import Dataset
from scanline.model.data.published_sets import load_dataset
from scanline.model.evaluation.likelihood import evaluate
from scanline.model.network import LinearTransformer
from scanline.model.paper.budget import Budget, History, Marks, train
from scanline.model.paper.kinds import attention_config
from scanline.model.paper.report import Report, Row
from scanline.model.training.config import TrainingConfig
from scanline.model.training.train_state import TrainState

KINDS = ("linear", "softmax", "lsh-1", "lsh-4")  # the paper's
MEASURED_MAPS = ("inhomogeneous", "fourier")  # linear attention with other feature maps


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
        learning_rate: Learning rate of AdamW, or of RAdam.
        muon_rate: Learning rate of Muon, which trains the matrices of the blocks while AdamW trains
            the rest and a moving average of the weights is evaluated; None for the paper's RAdam.
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
    learning_rate: float
    muon_rate: float | None
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
        if kind not in MEASURED_MAPS:
            changed = attention_config(kind, lsh_chunk=self.lsh_chunk)
        if self.neighbours:
            changed |= {"input": "neighbourhood", "encoding": "linear"}
        preset = replace(
            PRESETS[f"{self.data}-paper"], n_layers=self.n_layers, n_heads=self.n_heads,
            d_model=self.d_model, d_ff=4 * self.d_model,
        )  # fmt: skip
        return ModelConfig.from_dict(preset.to_dict() | changed)


class ImageTraining:
    """Training of one network, on the same images in the same order for every kind."""

    def __init__(
        self, table: ImageTableSettings, kind: str, data: Dataset, device: torch.device
    ) -> None:
        self.batch = table.softmax_batch if kind == "softmax" else table.batch
        self.averaged = table.muon_rate is not None
        rate = table.learning_rate
        # The rates stay constant, so that every point of a curve compares finished trainings.
        config = TrainingConfig(
            steps=2**62, batch=self.batch, learning_rate=rate, muon_rate=table.muon_rate or 0.0,
            warmup=100 if self.averaged else 0, decay=0.0,
        )  # fmt: skip
        self.state = TrainState(table.network(kind), config, device)
        if not self.averaged:
            group = {"params": list(self.state.model.parameters()), "rate": rate}
            self.state.optimizers = [torch.optim.RAdam([group], lr=rate)]
        self.images = torch.from_numpy(data.images.reshape(len(data), -1, data.images.shape[-1]))

    @property
    def network(self) -> LinearTransformer:
        """The network to evaluate: the moving average with Muon, as trained with RAdam."""
        return self.state.ema if self.averaged else self.state.model

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
