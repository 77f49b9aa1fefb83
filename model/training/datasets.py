"""What a network is trained on, held out from, measured on and judged beside."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from scanline.model.config import CIFAR10_CLASSES, DIGITS, PRESETS, ModelConfig
from scanline.model.data.dataset import Dataset, content_order, load_dataset, split_validation
from scanline.model.data.download import SOURCES
from scanline.model.data.image_folder import load_image_folder
from scanline.model.evaluation.likelihood import check_image_shape
from scanline.model.training.resume import dataset_fingerprint

log = logging.getLogger("scanline.training")

DEFAULT_SIZE = 28  # pixels a side of a person's own pictures
_HOLD_OUT = 1000  # images at most that are held out where nobody says how many
_WHOLE = "all of the folder, whatever of it the model was trained on"
_ALL_SEEN = "the model was trained on all of them"


def load_training_data(
    dataset: str | None,
    images: Path | None,
    size: int | None,
    grey: bool,
    hold_out: int | None,
    data_dir: Path | None,
    download: bool,
    start: Mapping[str, Any] | None = None,
) -> tuple[Dataset, Dataset | None]:
    """Read what to train on, and ``hold_out`` images of it to validate on.

    If None, those that the run held out whose facts are the ``start``, where there is one of the
    same images, else a tenth, 1,000 at most. The test set stays out of it. Pictures of a folder are
    fitted to ``size``, 28 pixels a side if None. Raises ``ValueError`` on an unclear wish, and
    where nothing is left to train on.
    """
    check_data_options(dataset, images, size, grey, data_dir, download)
    if images is not None:
        data = load_image_folder(images, size or DEFAULT_SIZE, grey)
    else:
        name = str(dataset).removesuffix("-paper")
        data = load_dataset(name, "train", data_dir, download=download)
    unseen = _unseen(data, start or {})
    training, validation = _parted(data, (unseen or None) if hold_out is None else hold_out)
    seen = 0 if validation is None or unseen is None else len(validation) - unseen
    if seen > 0 and int(os.environ.get("RANK", 0)) == 0:  # the first process says it for all
        log.warning("the start was trained on %s of the images held out", f"{seen:,}")
    return training, validation


def check_data_options(
    dataset: str | None,
    images: Path | None,
    size: int | None,
    grey: bool,
    data_dir: Path | None,
    download: bool,
) -> None:
    """Raise ``ValueError`` where it is unclear what to train on."""
    if (dataset is None) == (images is None):
        raise ValueError("say what to train on: mnist, cifar10, or --images FOLDER")
    if images is not None:
        if data_dir or download:
            raise ValueError(
                "--data-dir and --download are for mnist and cifar10, not for --images"
            )
        return
    if size or grey:
        raise ValueError(f"--size and --grey are for --images; {dataset} has its own")
    if dataset not in PRESETS:
        is_folder = Path(str(dataset)).is_dir()
        how = f"; to train on its pictures: --images {dataset}" if is_folder else ""
        raise ValueError(f"there is no {dataset!r}; there are {', '.join(PRESETS)}{how}")


def _held_out(data: Dataset) -> int:
    """Count the images that are held out where nobody says how many."""
    return min(_HOLD_OUT, len(data) // 10)


def _parted(data: Dataset, hold_out: int | None) -> tuple[Dataset, Dataset | None]:
    """Part images into those to train on and those held out, the same for all who ask."""
    count = _held_out(data) if hold_out is None else hold_out
    return _split(data, count) if count else (data, None)


def _unseen(data: Dataset, facts: Mapping[str, Any]) -> int | None:
    """Count the images that neither a checkpoint's run nor those before it trained on.

    They are the first of those that are held out. None where these were trained on other data.
    """
    runs = [facts, *(facts.get("started_from") or {}).get("runs", [])]
    return min((run["held_out"] for run in runs if _parted_as_trained(data, run)), default=None)


def _told(data: Dataset, held_out: Dataset, facts: Mapping[str, Any]) -> Dataset:
    """Note how many of the images that a run held out were trained on before it."""
    unseen = _unseen(data, facts)
    if unseen is None or unseen >= len(held_out):
        return held_out
    return held_out.with_note(f"a run before was trained on {len(held_out) - unseen:,} of them")


def _split(data: Dataset, count: int) -> tuple[Dataset, Dataset]:
    """Hold out images, of a folder those that stay so when others join them."""
    return split_validation(data, count, seed=0, by_content=data.name not in SOURCES)


def _parted_as_trained(
    data: Dataset, facts: Mapping[str, Any]
) -> tuple[Dataset, Dataset | None] | None:
    """Part a folder as the run that left these facts did; None where it trained on others."""
    count = facts.get("held_out")
    if count is None or count >= len(data):
        return None
    parts = _parted(data, count)
    return parts if dataset_fingerprint(parts[0]) == facts.get("trained_on") else None


def load_test_data(
    config: ModelConfig,
    facts: Mapping[str, Any],
    dataset: str | None,
    images: Path | None,
    data_dir: Path | None,
    download: bool,
) -> Dataset:
    """Read what to measure a model on: a folder, or the test set named, or that of its classes.

    Of the folder that it was trained on, as its checkpoint's ``facts`` tell, what was held out; of
    another, or where nothing was, all, and its note says so. Raises ``ValueError`` on an unclear
    wish: digits say nothing of a model of other pictures.
    """
    if images is not None:
        data = _pictures(config, images, dataset, data_dir, download)
        parts = _parted_as_trained(data, facts)
        if parts is not None and parts[1] is not None:
            return _told(data, parts[1], facts)
        mixed = data.take(content_order(data, seed=0))  # the first of them are of every class
        return replace(mixed.with_note(_ALL_SEEN if parts else _WHOLE), seen=parts is not None)
    known = {DIGITS: "mnist", CIFAR10_CLASSES: "cifar10"}
    if dataset is None and config.classes not in known:
        raise ValueError("say what to measure on: --images FOLDER, or --dataset mnist or cifar10")
    data = load_dataset(dataset or known[config.classes], "test", data_dir, download=download)
    check_image_shape(config, data)  # before anything is drawn to be compared with it
    return data


def _pictures(config: ModelConfig, images: Path, *others: object) -> Dataset:
    """Read a folder as a model draws; raises ``ValueError`` where ``others`` are asked for."""
    if any(others):
        raise ValueError(
            "--dataset, --data-dir and --download are for mnist and cifar10, not for --images"
        )
    return load_image_folder(images, (config.height, config.width), config.channels == 1)


def load_judge_data(
    config: ModelConfig,
    facts: Mapping[str, Any],
    dataset: str | None,
    images: Path | None,
    data_dir: Path | None,
    download: bool,
) -> tuple[Dataset, Dataset]:
    """Read what a judge learns from, and what it compares with: of a folder, parts of it.

    They are those that the model was trained on and not, where its checkpoint's ``facts`` tell,
    else those that training makes by default, and an image at least. Without a folder, the training
    and the test set of what ``load_test_data`` would choose.
    """
    if images is None:
        test = load_test_data(config, facts, dataset, None, data_dir, download)
        return load_dataset(test.name, "train", data_dir, download=download), test
    data = _pictures(config, images, dataset, data_dir, download)
    parts = _parted_as_trained(data, facts)
    if parts is not None and parts[1] is not None:
        return parts[0], _told(data, parts[1], facts)
    if len(data) < 2:
        raise ValueError(
            f"{images} holds one picture: a judge learns from some and compares with others, so "
            "give two or more"
        )
    training, test = _split(data, max(1, _held_out(data)))
    return training, test if parts is None else test.with_note(_ALL_SEEN)
