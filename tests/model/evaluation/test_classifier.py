"""Classifier: training, caching and settings."""

from __future__ import annotations

import logging
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from scanline.model.data.dataset import Dataset
from scanline.model.data.published_sets import load_dataset
from scanline.model.evaluation.classifier import (
    Classifier,
    ClassifierConfig,
    _augment,
    accuracy,
    load_or_train,
    majority_accuracy,
    reliability_warning,
    train,
)
from tests.model.evaluation.fixtures import CONFIG, CPU, bars

pytestmark = pytest.mark.usefixtures("cache_folder")  # for cached classifiers


def weights(classifier: Classifier) -> NDArray[np.float32]:
    return np.concatenate([t.numpy().ravel() for t in classifier.state_dict().values()])


@pytest.mark.parametrize("channels", [1, 3])
def test_classifier_learns(channels: int) -> None:
    batches: list[int] = []
    data = bars(240, channels=channels)
    classifier = train(data, CONFIG, CPU, batches.append)
    assert sum(batches) == 6 * 240
    unseen = bars(120, seed=1, channels=channels)
    assert accuracy(classifier, unseen) > 0.9
    seen, features = classifier.predict(unseen.images)
    assert seen.shape == (120,)
    assert features.shape == (120, 6)
    assert (seen == unseen.labels).mean() == accuracy(classifier, unseen)
    assert accuracy(classifier, replace(unseen, labels=(seen + 1) % 3)) == 0


def test_training_is_deterministic() -> None:
    data, short = bars(60), replace(CONFIG, epochs=1)
    one = weights(train(data, short, CPU))
    torch.manual_seed(99)
    np.testing.assert_array_equal(weights(train(data, short, CPU)), one)
    for other in (
        train(data, replace(short, seed=1), CPU),
        train(bars(60, seed=1), short, CPU),
        train(data, replace(short, mirror=True), CPU),
        train(data, replace(short, shift=0), CPU),
    ):
        assert not np.array_equal(weights(other), one)


def test_classifier_is_cached(cache_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    data, short = bars(40), replace(CONFIG, epochs=1)
    batches: list[int] = []
    first = load_or_train(data, short, CPU, batches.append)
    assert sum(batches) == 40
    again = load_or_train(data, short, CPU, batches.append)
    assert sum(batches) == 40
    np.testing.assert_array_equal(again.predict(data.images)[1], first.predict(data.images)[1])
    (file,) = cache_folder.rglob("*.safetensors")
    assert file.name.startswith("bars-")
    for others, config in (
        (bars(40, seed=1), short),
        (replace(data, labels=np.arange(40) // 4 % 3), short),
        (data, replace(short, seed=1)),
        (data, replace(short, epochs=2)),
    ):
        before = sum(batches)
        load_or_train(others, config, CPU, batches.append)
        assert sum(batches) > before
    file.write_bytes(b"damaged")
    before = sum(batches)
    with caplog.at_level(logging.WARNING):
        load_or_train(data, short, CPU, batches.append)
    assert sum(batches) == before + 40
    assert "cannot be read" in caplog.text
    load_or_train(data, short, CPU, batches.append)
    assert sum(batches) == before + 40


def test_images_without_classes_are_rejected() -> None:
    nameless = replace(bars(6), labels=None, classes=())
    for of in (train, load_or_train):
        with pytest.raises(ValueError, match="these images have none"):
            of(nameless, CONFIG, CPU)


def test_images_of_one_class_are_rejected() -> None:
    alike = replace(bars(30), labels=np.zeros(30, np.int64))
    for of in (train, load_or_train):
        with pytest.raises(ValueError, match="at least two classes, and these images are of one"):
            of(alike, CONFIG, CPU)


def test_small_data_sets_get_more_epochs() -> None:
    data, seen = bars(60), list[int]()
    classifier = train(data, ClassifierConfig.for_dataset(data), CPU, seen.append)
    assert len(seen) >= 200
    assert max(seen) <= 15
    assert accuracy(classifier, bars(120, seed=1)) > 0.9


@pytest.mark.parametrize("steps", [1, 2, 4, 5])
def test_learning_rate_decays_with_few_steps(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []

    class Watched(torch.optim.AdamW):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            rates.append(self.param_groups[0]["lr"])
            super().step()

    monkeypatch.setattr(torch.optim, "AdamW", Watched)
    train(bars(60), replace(CONFIG, epochs=steps, batch=60), CPU)
    assert len(rates) == steps
    assert rates[-1] < CONFIG.rate / 1000


def test_settings_for_published_data_sets_never_change() -> None:
    """Cached classifiers and recorded results depend on them."""
    usual = {
        "features": 64, "batch": 128, "rate": 0.006, "weight_decay": 0.02, "seed": 0, "version": 1,
    }  # fmt: skip
    digits = Dataset("mnist", np.zeros((60_000, 28, 28, 1), np.uint8), None, ())
    assert asdict(ClassifierConfig.for_dataset(digits)) == usual | {
        "epochs": 4, "widths": (16, 32, 64), "shift": 2, "mirror": False,
    }  # fmt: skip
    photographs = Dataset("cifar10", np.zeros((50_000, 32, 32, 3), np.uint8), None, ())
    assert asdict(ClassifierConfig.for_dataset(photographs)) == usual | {
        "epochs": 6, "widths": (32, 64, 128), "shift": 3, "mirror": True,
    }  # fmt: skip


def test_reliability_warning() -> None:
    uneven = replace(bars(10), labels=np.array([0] * 7 + [1, 2, 2]))
    assert majority_accuracy(uneven) == 0.7
    said = reliability_warning(0.72, 0.7)
    assert "meaningless: the classifier is right on 72.0%" in said
    assert "most frequent class on 70.0%" in said
    assert reliability_warning(0.9, 0.7) == ""


def test_grey_and_colour_have_different_settings() -> None:
    grey, colour = (
        ClassifierConfig.for_dataset(bars(3)),
        ClassifierConfig.for_dataset(bars(3, channels=3), 2, seed=5),
    )
    assert not grey.mirror  # a mirrored 2 is not a 2
    assert colour.mirror
    assert (colour.epochs, colour.seed) == (2, 5)


def test_augmentation_mirrors_some_images() -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (40, 4, 5, 3), np.uint8)
    config = replace(CONFIG, shift=0, mirror=True)
    moved = _augment(pictures, config, np.random.default_rng(1))
    mirrored = (moved == pictures[:, :, ::-1]).all((1, 2, 3))
    assert 8 < mirrored.sum() < 32
    np.testing.assert_array_equal(moved[~mirrored], pictures[~mirrored])


@pytest.mark.slow
def test_classifier_learns_mnist(data_dir: Path) -> None:
    """One epoch on a third of MNIST reaches an accuracy of 97 %."""
    training = load_dataset("mnist", "train", data_dir).take(slice(20_000))
    classifier = train(training, ClassifierConfig.for_dataset(training, 1), CPU)
    assert accuracy(classifier, load_dataset("mnist", "test", data_dir)) > 0.97
