"""Tests of the selection of the data to train on, to evaluate on, and to compare samples with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from scanline.model.checkpoint import SHIPPED_WEIGHTS, load_facts
from scanline.model.config import PRESET_DATASETS, PRESETS
from scanline.model.data.catalog import PUBLISHED
from scanline.model.data.dataset import Dataset, split_validation
from scanline.model.data.published_sets import load_dataset
from scanline.model.training import datasets
from scanline.model.training.datasets import (
    DataSource,
    check_training_source,
    load_classifier_data,
    load_test_data,
    load_training_data,
)
from scanline.model.training.resume import dataset_fingerprint
from tests.conftest import tiny_config
from tests.dataset_files import hide_other_data, write_cifar, write_mnist

load_test_data.__test__ = False  # type: ignore[attr-defined]  # not a test, despite its name


@pytest.fixture
def folder_of_images(tmp_path: Path) -> Path:
    for j in range(25):
        path = tmp_path / "images" / "ab"[j % 2] / f"{j:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 7), (10 * j, 0, 0)).save(path)
    return tmp_path / "images"


def test_number_of_held_out_images(folder_of_images: Path) -> None:
    def sizes(hold_out: int | None) -> tuple[int, int]:
        data, validation = load_training_data(DataSource(images=folder_of_images), hold_out, size=8)
        assert data.images.shape[1:] == (8, 8, 3)
        assert data.classes == ("a", "b")
        return len(data), 0 if validation is None else len(validation)

    assert sizes(None) == (23, 2)
    assert sizes(12) == (13, 12)
    assert sizes(1) == (24, 1)
    assert sizes(0) == (25, 0)
    for everything in (25, 1000):
        with pytest.raises(ValueError, match=f"cannot hold out {everything:,} of 25 images"):
            sizes(everything)


def numbered(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every folder hold ``count`` images, whose pixels encode their number."""
    images = np.arange(count, dtype=np.uint32).view(np.uint8).reshape(-1, 2, 2, 1)
    folder = Dataset("images", images, None, ())
    monkeypatch.setattr(datasets, "load_image_folder", lambda *of: folder)


def numbers(data: Dataset | None) -> set[int]:
    return set() if data is None else set(data.images.reshape(-1, 4).view(np.uint32)[:, 0].tolist())


@pytest.mark.parametrize("hold_out", [None, 0, 1, 12])
@pytest.mark.parametrize("count", [5, 26, 10_010])
def test_training_images_are_not_used_for_evaluation(
    count: int, hold_out: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if hold_out is not None and hold_out >= count:
        return
    numbered(count, monkeypatch)
    source, grey = DataSource(images=Path("images")), tiny_config(height=2, width=2)
    data, validation = load_training_data(source, hold_out, size=2, grey=True)
    held_out = 0 if validation is None else len(validation)
    assert held_out == (min(1000, count // 10) if hold_out is None else hold_out)
    facts = {"trained_on": dataset_fingerprint(data), "held_out": held_out}
    training_images, test_images = load_classifier_data(grey, facts, source)
    measured = load_test_data(grey, facts, source)
    assert not numbers(training_images) & numbers(test_images)
    for evaluated in (measured, test_images):
        if held_out:
            assert numbers(evaluated) == numbers(validation)
            assert "held out" in evaluated.note
        else:
            assert "the model was trained on all of them" in evaluated.note
    if hold_out is None and held_out:  # metadata of an earlier version
        assert numbers(load_classifier_data(grey, {}, source)[1]) == numbers(validation)
    for other in ({}, facts | {"trained_on": "other"}, facts | {"held_out": count}):
        everything = load_test_data(grey, other, source)
        assert len(everything) == count
        assert "which may include training images" in everything.note


def test_images_added_to_folder_do_not_change_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = DataSource(images=Path("images"))
    numbered(40, monkeypatch)
    trained, _ = load_training_data(source, 5, size=2, grey=True)
    numbered(60, monkeypatch)
    _, validation = load_training_data(source, 5, size=2, grey=True)
    assert not numbers(trained) & numbers(validation)


def test_first_images_of_folder_are_of_every_class(folder_of_images: Path) -> None:
    source = DataSource(images=folder_of_images)
    labels = load_test_data(tiny_config(), {}, source).labels
    assert labels is not None
    assert labels[:12].tolist() != sorted(labels[:12])
    held_out = load_classifier_data(tiny_config(), {}, source)[1].labels
    assert held_out is not None
    np.testing.assert_array_equal(held_out, labels[: len(held_out)])


def test_training_data_of_a_data_set_and_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_other_data(monkeypatch)
    write_mnist(tmp_path / "mnist")
    for name in ("mnist", "mnist-paper"):
        data, validation = load_training_data(DataSource(name, data_dir=tmp_path), 2)
        assert validation is not None
        assert (len(data), len(validation)) == (4, 2)
        # Depends on the seed only.
        of_seed = split_validation(load_dataset("mnist", "train", tmp_path), 2, 0)[1]
        assert np.array_equal(validation.images, of_seed.images)
    for dataset, images in ((None, None), ("mnist", tmp_path)):
        with pytest.raises(ValueError, match="choose what to train on"):
            check_training_source(DataSource(dataset, images, tmp_path), None, grey=False)
    with pytest.raises(ValueError, match="unknown preset 'digits': choose mnist"):
        check_training_source(DataSource("digits", data_dir=tmp_path), None, grey=False)
    with pytest.raises(
        ValueError, match=f"to train on a folder of images, use --images {tmp_path}"
    ):
        check_training_source(DataSource(str(tmp_path)), None, grey=False)


def test_each_preset_fits_its_data_set() -> None:
    assert PRESET_DATASETS.keys() == PRESETS.keys()
    for name, config in PRESETS.items():
        published = PUBLISHED[PRESET_DATASETS[name]]
        assert (config.height, config.width, config.channels) == published.shape, name
        assert config.classes in ((), published.classes), name


def test_evaluation_uses_folder_or_test_set_of_classes(
    tmp_path: Path, folder_of_images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_other_data(monkeypatch)
    write_mnist(tmp_path / "mnist")
    write_cifar(tmp_path / "cifar10")
    grey, colour = tiny_config(), tiny_config(channels=3, head="logistic_mixture")
    digits = PRESETS["mnist"]
    assert load_test_data(grey, {}, DataSource(images=folder_of_images)).images.shape == (
        25,
        5,
        4,
        1,
    )
    assert load_test_data(colour, {}, DataSource(images=folder_of_images)).images.shape == (
        25,
        5,
        4,
        3,
    )
    assert load_test_data(digits, {}, DataSource(data_dir=tmp_path)).images.shape[1:] == (28, 28, 1)
    photographs = load_test_data(PRESETS["cifar10"], {}, DataSource(data_dir=tmp_path))
    assert photographs.images.shape[1:] == (32, 32, 3)
    for own in (replace(digits, classes=()), replace(digits, classes=("cat", "dog"))):
        with pytest.raises(ValueError, match="choose what to measure on"):
            load_test_data(own, {}, DataSource(data_dir=tmp_path))
    monkeypatch.setitem(PUBLISHED, "digits", replace(PUBLISHED["mnist"], name="digits"))
    with pytest.raises(ValueError, match=r"FOLDER, --dataset mnist or --dataset digits$"):
        load_test_data(digits, {}, DataSource(data_dir=tmp_path))
    with pytest.raises(ValueError, match=r"draws .* × 3 images, the data has 28 × 28 × 1"):
        load_test_data(colour, {}, DataSource("mnist", data_dir=tmp_path))


def test_single_image_is_not_enough_to_compare_samples(tmp_path: Path) -> None:
    Image.new("L", (9, 7)).save(tmp_path / "one.png")
    with pytest.raises(ValueError, match=r"holds one image: .* at least two"):
        load_classifier_data(tiny_config(), {}, DataSource(images=tmp_path))


@pytest.mark.parametrize(("hold_out", "held_out"), [(None, 4), (4, 4), (6, 6)])
def test_images_seen_by_starting_checkpoint_are_not_held_out_or_reported(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    hold_out: int | None,
    held_out: int,
) -> None:

    source = DataSource(images=Path("images"))

    def load(hold_out: int | None, start: dict[str, Any] | None = None) -> Any:
        return load_training_data(source, hold_out, size=2, grey=True, start=start)

    numbered(60, monkeypatch)
    trained, held = load(4)
    assert held is not None
    facts = {"trained_on": dataset_fingerprint(trained), "held_out": len(held)}
    for start in (facts, {"trained_on": "x", "held_out": 3, "started_from": {"runs": [facts]}}):
        data, validation = load(hold_out, start)
        assert validation is not None
        assert len(validation) == held_out
        seen = len(numbers(validation) & numbers(trained))
        message = f"start from was trained on {seen} of the held-out images"
        assert (message in caplog.text) is (seen > 0)
        caplog.clear()
        # The same is reported when the model is evaluated.
        run = {"trained_on": dataset_fingerprint(data), "held_out": held_out,
               "started_from": {"runs": [facts]}}  # fmt: skip
        measured = load_test_data(tiny_config(height=2, width=2), run, source)
        judged = load_classifier_data(tiny_config(height=2, width=2), run, source)[1]
        for each in (measured, judged):
            assert numbers(each) == numbers(validation)
            assert ("an earlier run was trained on" in each.note) is (seen > 0)


RECORDED = {"trained_on": "x", "held_out": 3}


@pytest.mark.parametrize(
    ("start", "warned"),
    [
        (None, False),  # no checkpoint
        ({}, True),
        ({"test": {"bits_per_dim": 1.0, "data": "images"}}, True),
        ({"test": {"bits_per_dim": 1.0, "data": "mnist"}}, False),
        ({"native_precision": {"precision": "int8", "data": "mnist"}}, False),
        (RECORDED, False),
        (RECORDED | {"started_from": {"name": "first", "runs": [RECORDED]}}, False),
        (RECORDED | {"started_from": {"name": "first"}}, True),  # an earlier version's
        (RECORDED | {"started_from": {"name": "first", "runs": [{"held_out": 3}]}}, True),
    ],
)
def test_start_that_does_not_record_its_images_is_reported(
    start: dict[str, Any] | None, warned: bool, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    numbered(60, monkeypatch)
    source = DataSource(images=Path("images"))
    for hold_out in (0, 4):
        caplog.clear()
        load_training_data(source, hold_out, size=2, grey=True, start=start)
        message = "it may have been trained on some of the held-out images"
        assert (message in caplog.text) is (warned and hold_out > 0)


def test_shipped_mnist_is_reported_only_on_mnist(
    tmp_path: Path, folder_of_images: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Its facts have no fingerprint of its training images."""
    hide_other_data(monkeypatch)
    write_mnist(tmp_path / "mnist")
    facts = load_facts(SHIPPED_WEIGHTS / "mnist.safetensors")
    load_training_data(DataSource(images=folder_of_images), 2, size=28, start=facts)
    assert caplog.text == ""
    load_training_data(DataSource("mnist", data_dir=tmp_path), 2, start=facts)
    assert "may have been trained on some of the held-out images" in caplog.text


def test_equal_images_are_evaluated_as_unseen(tmp_path: Path) -> None:
    for j in range(3):
        Image.new("L", (4, 4), 7).save(tmp_path / f"{j}.png")
    facts = {"trained_on": "other images", "held_out": 1}
    assert len(load_test_data(tiny_config(), facts, DataSource(images=tmp_path))) == 3
