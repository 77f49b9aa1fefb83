"""Selection of the data to train on, to evaluate on, and to compare samples with."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from scanline.model.config import PRESET_DATASETS, PRESETS, ModelConfig
from scanline.model.data.catalog import PUBLISHED, one_of
from scanline.model.data.dataset import Dataset, content_order, split_validation
from scanline.model.data.download import DataError
from scanline.model.data.image_folder import load_image_folder
from scanline.model.data.published_sets import load_dataset
from scanline.model.evaluation.likelihood import check_image_shape
from scanline.model.training.resume import dataset_fingerprint

log = logging.getLogger("scanline.training")

DEFAULT_SIZE = 28  # pixels a side of the images of a folder
_MAX_HELD_OUT = 1000  # images held out by default, at most
_NOT_SPLIT = "all of the folder, which may include training images"
_ALL_SEEN = "the model was trained on all of them"


class DataSource(NamedTuple):
    """A user's choice of images: a data set or a folder.

    Attributes:
        dataset: Key of ``PUBLISHED``; for training, key of ``PRESETS``.
        images: Folder of images.
        data_dir: Folder of the data sets; None searches the default folders.
        download: Download a missing data set.
    """

    dataset: str | None = None
    images: Path | None = None
    data_dir: Path | None = None
    download: bool = False


def load_training_data(
    source: DataSource,
    hold_out: int | None = None,
    *,
    size: int | None = None,
    grey: bool = False,
    start: Mapping[str, Any] | None = None,
) -> tuple[Dataset, Dataset | None]:
    """Read the training images, and split off images for validation; never read the test set.

    Args:
        source: Data set or folder, accepted by ``check_training_source``.
        hold_out: Number of images for validation. None means those that the run of ``start`` held
            out of the same images, else 10 %, at most 1,000.
        size: Pixels a side of the images of a folder; None means 28.
        grey: Read the images of a folder in greyscale.
        start: Metadata of the checkpoint that the run starts from.

    Returns:
        Training images, and validation images or None.

    Raises:
        ValueError: If no training images are left.
    """
    if source.images is not None:
        data = load_image_folder(source.images, size or DEFAULT_SIZE, grey)
    else:
        name = PRESET_DATASETS[str(source.dataset)]
        data = load_dataset(name, "train", source.data_dir, download=source.download)
    unseen = _unseen_count(data, start or {})
    training, validation = _split_default(data, (unseen or None) if hold_out is None else hold_out)
    if start is not None and validation is not None and int(os.environ.get("RANK", 0)) == 0:
        _warn_of_seen_images(data, start, len(validation), unseen)  # one process warns for all
    return training, validation


def _warn_of_seen_images(
    data: Dataset, start: Mapping[str, Any], held_out: int, unseen: int | None
) -> None:
    """Warn if the checkpoint to start from was, or may have been, trained on held-out images."""
    if unseen is None and _may_have_seen(data, start):
        log.warning(
            "the checkpoint to start from does not record its training images: it may have been "
            "trained on some of the held-out images"
        )
    elif unseen is not None and held_out > unseen:
        log.warning(
            "the checkpoint to start from was trained on %s of the held-out images",
            f"{held_out - unseen:,}",
        )


def _may_have_seen(data: Dataset, facts: Mapping[str, Any]) -> bool:
    """Return True if a checkpoint may have been trained on images that its facts do not record.

    Earlier versions recorded no fingerprint, and imported checkpoints have none. Such a checkpoint
    counts as trained on the data set that it was measured on; without a measurement it may have
    been trained on any.
    """
    origin = facts.get("started_from") or {"runs": []}
    runs = [facts, *origin.get("runs", [{}])]
    if all(run.get("trained_on") and run.get("held_out") is not None for run in runs):
        return False
    measured = (facts.get(name) for name in ("test", "test_with_label", "native_precision"))
    names = {one["data"] for one in measured if one and one.get("data")}
    return not names or data.title in names


def check_training_source(source: DataSource, size: int | None, grey: bool) -> None:
    """Raise ``ValueError`` unless the options name one source of training data."""
    dataset, images, data_dir, download = source
    if (dataset is None) == (images is None):
        raise ValueError(f"choose what to train on: {one_of([*PRESETS, '--images FOLDER'])}")
    if images is not None:
        if data_dir or download:
            raise ValueError(
                "--data-dir and --download are for published data sets, not for --images"
            )
        return
    if size or grey:
        raise ValueError(f"--size and --grey are for --images, not for {dataset}")
    if dataset not in PRESETS:
        is_folder = Path(str(dataset)).is_dir()
        hint = f"; to train on a folder of images, use --images {dataset}" if is_folder else ""
        raise ValueError(f"unknown preset {dataset!r}: choose {one_of(PRESETS)}{hint}")


def _default_held_out(data: Dataset) -> int:
    return min(_MAX_HELD_OUT, len(data) // 10)


def _split_default(data: Dataset, hold_out: int | None) -> tuple[Dataset, Dataset | None]:
    """Split into training and held-out images; None means the default number, 0 means no split."""
    count = _default_held_out(data) if hold_out is None else hold_out
    return _split(data, count) if count else (data, None)


def _unseen_count(data: Dataset, facts: Mapping[str, Any]) -> int | None:
    """Count the held-out images that no run of a checkpoint's history was trained on.

    These are the first of the held-out images. Returns None if no run is known to have been trained
    on these data.
    """
    runs = [facts, *(facts.get("started_from") or {}).get("runs", [])]
    return min((run["held_out"] for run in runs if _split_as_trained(data, run)), default=None)


def _with_seen_note(data: Dataset, held_out: Dataset, facts: Mapping[str, Any]) -> Dataset:
    """Note on the held-out images how many an earlier run was trained on."""
    unseen = _unseen_count(data, facts)
    if unseen is None or unseen >= len(held_out):
        return held_out
    seen = len(held_out) - unseen
    return held_out.with_note(f"an earlier run was trained on {seen:,} of them")


def _split(data: Dataset, count: int) -> tuple[Dataset, Dataset]:
    """Hold out images; in a folder by content, so that added images change the split little."""
    return split_validation(data, count, seed=0, by_content=data.from_folder)


def _split_as_trained(
    data: Dataset, facts: Mapping[str, Any]
) -> tuple[Dataset, Dataset | None] | None:
    """Split a folder as the run with this metadata did; None if it was trained on other images."""
    count = facts.get("held_out")
    if count is None or count >= len(data):
        return None
    try:
        parts = _split_default(data, count)
    except DataError:  # equal images, which no run could split
        return None
    return parts if dataset_fingerprint(parts[0]) == facts.get("trained_on") else None


def load_test_data(config: ModelConfig, facts: Mapping[str, Any], source: DataSource) -> Dataset:
    """Read the images to evaluate a model on.

    Args:
        config: The model's network.
        facts: The metadata of its checkpoint.
        source: A data set, whose test set is read, or a folder. Without either, the test set with
            the model's classes is read. If the model was trained on the folder, only the held-out
            images are returned, or all with a note if there are none.

    Raises:
        ValueError: If the options contradict each other, or no test set fits the model.
    """
    if source.images is not None:
        data = _load_folder_for(config, source.images, source)
        parts = _split_as_trained(data, facts)
        if parts is not None and parts[1] is not None:
            return _with_seen_note(data, parts[1], facts)
        mixed = data.take(content_order(data, seed=0))  # mixes the classes
        return replace(mixed.with_note(_ALL_SEEN if parts else _NOT_SPLIT), seen=parts is not None)
    name = source.dataset
    if name is None:
        fitting = [one.name for one in PUBLISHED.values() if one.classes == config.classes]
        if len(fitting) != 1:
            choices = one_of(f"--dataset {each}" for each in fitting or PUBLISHED)
            raise ValueError(f"choose what to measure on: --images FOLDER, {choices}")
        (name,) = fitting
    data = load_dataset(name, "test", source.data_dir, download=source.download)
    check_image_shape(config, data)
    return data


def _load_folder_for(config: ModelConfig, images: Path, source: DataSource) -> Dataset:
    """Read a folder in a model's size and channels; raise if other options are given as well."""
    if source.dataset or source.data_dir or source.download:
        raise ValueError(
            "--dataset, --data-dir and --download are for published data sets, not for --images"
        )
    return load_image_folder(images, (config.height, config.width), config.channels == 1)


def load_classifier_data(
    config: ModelConfig, facts: Mapping[str, Any], source: DataSource
) -> tuple[Dataset, Dataset]:
    """Read the images to train the classifier of samples on, and those to compare samples with.

    These are the training set and the test set of ``load_test_data``. A folder is split as the
    model's run did, else as training does by default, with at least one image to compare with.

    Args:
        config: The model's network.
        facts: The metadata of its checkpoint.
        source: As for ``load_test_data``.

    Raises:
        ValueError: As for ``load_test_data``, or if the folder holds a single image.
    """
    if source.images is None:
        test = load_test_data(config, facts, source)
        return load_dataset(test.name, "train", source.data_dir, download=source.download), test
    data = _load_folder_for(config, source.images, source)
    parts = _split_as_trained(data, facts)
    if parts is not None and parts[1] is not None:
        return parts[0], _with_seen_note(data, parts[1], facts)
    if len(data) < 2:
        raise ValueError(
            f"{source.images} holds one image: comparing samples needs at least two, because a "
            "classifier is trained on some images and compares samples with the others"
        )
    training, test = _split(data, max(1, _default_held_out(data)))
    return training, test if parts is None else test.with_note(_ALL_SEEN)
