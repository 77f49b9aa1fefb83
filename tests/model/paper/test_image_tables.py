"""Tests of tables 1 and 2."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from scanline.model.config import PRESETS
from scanline.model.data.published_sets import load_dataset
from scanline.model.evaluation.likelihood import evaluate
from scanline.model.paper.budget import Marks
from scanline.model.paper.image_tables import PAIR_BITS, TABLE1, TABLE2, common_mark
from scanline.model.paper.image_training import ImageTableSettings, ImageTraining, unlabelled
from tests.dataset_files import write_mnist
from tests.model.paper.fixtures import CPU, trained, unit_run

TABLE = ImageTableSettings(
    data="mnist", n_layers=1, n_heads=2, d_model=16, learning_rate=2e-3, muon_rate=0.02, batch=2,
    softmax_batch=1, lsh_chunk=29, seconds=None, epochs=2, test_images=3, mark_images=2,
    marks=Marks(2),
)  # fmt: skip


@pytest.mark.parametrize("kind", ["linear", "lsh-1", "fourier"])
def test_unit_trains_on_whole_images_and_resumes(kind: str, tmp_path: Path) -> None:
    write_mnist(tmp_path / "data" / "mnist")
    run = unit_run(kind, TABLE, tmp_path / "out", tmp_path / "data")
    ((key, make),) = TABLE1.rows(run)
    row = run.report.measure(key, make)
    images = len(load_dataset("mnist", "train", tmp_path / "data"))
    assert row["steps"] * 2 == 2 * images
    assert row["evaluations"][0]["images_seen"] == 4
    assert [one["images"] for one in row["evaluations"]][:: len(row["evaluations"]) - 1] == [2, 3]
    last = row["evaluations"][-1]
    assert 1 < last["bits_per_dim"] < 20
    assert last["bits_per_dim"] == pytest.approx(fmean(last["image_bits"]), abs=1e-4)
    assert len(last["image_bits"]) == 3
    assert not row.get("unfinished")


def test_networks_differ_in_their_attention_only() -> None:
    linear = TABLE.network("linear")
    assert TABLE.network("softmax") == replace(linear, attention="softmax")
    assert TABLE.network("lsh-4") == replace(
        linear, attention="lsh-4", lsh_chunk=29, lsh_combine="mean"
    )
    assert TABLE.network("fourier") == replace(linear, feature_map="fourier")
    assert replace(TABLE, neighbours=True).network("lsh-4") == replace(
        TABLE.network("lsh-4"), input="neighbourhood", encoding="linear"
    )
    for table, preset in ((TABLE1, "mnist-paper"), (TABLE2, "cifar10-paper")):
        assert table.presets["full"].network("linear") == PRESETS[preset]
        assert table.presets["default"].network("linear").values == PRESETS[preset].values


@pytest.mark.parametrize(
    ("kind", "muon_rate"), [("linear", 0.02), ("linear", None), ("lsh-1", 0.02), ("lsh-1", None)]
)
def test_continued_training_takes_the_same_steps(
    kind: str, muon_rate: float | None, tmp_path: Path
) -> None:
    """An evaluation in between has no effect."""
    write_mnist(tmp_path / "mnist")
    data = unlabelled(load_dataset("mnist", "train", tmp_path))
    table = replace(TABLE, learning_rate=3e-4, muon_rate=muon_rate)

    def start() -> ImageTraining:
        return ImageTraining(table, kind, data, CPU)

    whole, first, second = start(), start(), start()
    losses = [whole.take_step() for _ in range(4)]
    for _ in range(2):
        first.take_step()
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    evaluate(second.network, unlabelled(data, 1))
    assert [second.take_step() for _ in range(2)] == losses[2:]
    rates = {
        (type(one).__name__, group["rate"])
        for one in second.state.optimizers
        for group in one.param_groups
    }
    assert rates == ({("RAdam", 3e-4)} if muon_rate is None else {("Muon", 0.02), ("AdamW", 3e-4)})
    assert (second.network is second.state.model) == (muon_rate is None)


def test_softmax_batch_applies_to_softmax_only(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    data = unlabelled(load_dataset("mnist", "train", tmp_path))
    assert [ImageTraining(TABLE, kind, data, CPU).batch for kind in ("softmax", "lsh-1")] == [1, 2]


def test_common_mark_is_the_largest_that_all_kinds_reached() -> None:
    rows: dict[str, dict[str, Any]] = trained("linear", 1.0) | trained("softmax", 1.1)
    assert common_mark(rows, "images_seen") == 8000
    assert common_mark(rows, "second_mark") == 600
    assert common_mark(rows | trained("lsh-1", 1.1, images=9000), "images_seen") == 4000
    assert common_mark({}, "images_seen") is None
    rows["train linear"]["evaluations"] = []
    assert common_mark(rows, "images_seen") is None


def test_table_compares_kinds_after_equal_images_and_equal_time() -> None:
    rows = trained("linear", 1.0) | trained("fourier", 1.25)
    table = TABLE1.table(rows)
    assert "| ours, after 600 seconds | images seen | ours, after 8,000 images | seconds |" in table
    assert "| linear | 0.644 | 1.000 ± 0.002 | 8,000 | 1.000 ± 0.002 | 601 |" in table
    assert "| fourier | – | 1.250 ± 0.002 | 8,000 | 1.250 ± 0.002 | 601 |" in table
    rows["train fourier"]["evaluations"] = rows["train fourier"]["evaluations"][:1]
    rows["train fourier"]["unfinished"] = True
    table = TABLE1.table(rows)
    assert "ours, after 8,000 images" in table  # a feature map does not limit the paper's kinds
    assert "| fourier | – | – | – | – | – | – | 9 |" in table
    rows = trained("linear", 1.0) | trained("softmax", 1.25)
    rows["train softmax"]["evaluations"] = rows["train softmax"]["evaluations"][:1]
    rows["train softmax"]["unfinished"] = True
    table = TABLE1.table(rows)
    assert "ours, after 4,000 images" in table
    assert "after 600" not in table
    assert "| softmax | 0.621 | 1.250 ± 0.002 | 9 | – | 9 |" in table


@pytest.mark.broad
@pytest.mark.parametrize("data", PAIR_BITS)
def test_table_of_pairs(data: str, data_dir: Path) -> None:
    train, test = (load_dataset(data, split, data_dir).images for split in ("train", "test"))
    channels = train.shape[-1]

    def count(images: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Count pairs of successive values: ``[channel, previous value, value]``."""
        flat = images.reshape(len(images), -1).astype(np.int64)
        pairs = 256 * flat[:, :-1] + flat[:, 1:]
        by_channel = (pairs[:, (c - 1) % channels :: channels] for c in range(channels))
        return np.stack(
            [np.bincount(one.ravel(), minlength=2**16).reshape(256, 256) for one in by_channel]
        )

    smoothed = count(train) + 0.1
    for images, expected in PAIR_BITS[data].items():
        seen = count(test[:images])
        bits = -(seen * np.log2(smoothed / smoothed.sum(-1, keepdims=True))).sum() / seen.sum()
        assert bits == pytest.approx(expected, abs=5e-4)
