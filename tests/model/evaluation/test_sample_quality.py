"""Sample quality, inpainting and the classifier that they use."""

from __future__ import annotations

import logging
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from scanline.model.api import draw, generate
from scanline.model.checkpoint import Checkpoint, SamplingDefaults
from scanline.model.data.dataset import Dataset, load_dataset
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
from scanline.model.evaluation.frechet import frechet_distance
from scanline.model.evaluation.inpainting import (
    InpaintingResult,
    evaluate_inpainting,
    inpainting_masks,
)
from scanline.model.evaluation.sample_quality import evaluate_samples, typical_range
from tests.service.fixtures import GREY, tiny_model

pytestmark = pytest.mark.usefixtures("own_cache")  # for classifiers
CPU = torch.device("cpu")
CONFIG = ClassifierConfig(epochs=6, widths=(8, 8, 8), shift=1, mirror=False, features=6, batch=16)


def bars(count: int, seed: int = 0, channels: int = 1) -> Dataset:
    """Return noisy images with a horizontal bar, a vertical bar, or both."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 90, (count, GREY.height, GREY.width, channels), np.uint8)
    labels = np.arange(count) % 3
    for image, label in zip(images, labels, strict=True):
        if label != 0:
            image[:, rng.integers(1, 4)] = 220
        if label != 1:
            image[rng.integers(1, 5)] = 220
    return Dataset("bars", images, labels, GREY.classes, "")


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


def test_classifier_is_cached(own_cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    data, short = bars(40), replace(CONFIG, epochs=1)
    batches: list[int] = []
    first = load_or_train(data, short, CPU, batches.append)
    assert sum(batches) == 40
    again = load_or_train(data, short, CPU, batches.append)
    assert sum(batches) == 40
    np.testing.assert_array_equal(again.predict(data.images)[1], first.predict(data.images)[1])
    (file,) = own_cache.rglob("*.safetensors")
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


def test_frechet_distance_of_gaussians() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 5)) @ rng.normal(size=(5, 5)) + 1
    assert frechet_distance(x, x) == pytest.approx(0, abs=1e-9)
    assert frechet_distance(x, x[::-1]) == pytest.approx(0, abs=1e-9)
    step = np.arange(5.0)
    assert frechet_distance(x, x + step) == pytest.approx(step @ step)
    # Twice as wide: |μ|² + tr(C + 4C - 2·2C)
    mean, spread = x.mean(0), np.trace(np.cov(x, rowvar=False))
    assert frechet_distance(x, 2 * x) == pytest.approx(mean @ mean + spread)
    assert frechet_distance(2 * x, x) == pytest.approx(mean @ mean + spread)
    flat = x * [1, 1, 1, 1, 0]  # a constant feature
    assert frechet_distance(flat, flat) == pytest.approx(0, abs=1e-9)
    with pytest.raises(ValueError, match="two images"):
        frechet_distance(x, x[:1])


def test_typical_range() -> None:
    bounds = typical_range(np.linspace(2.0, 4.0, 10_001))
    np.testing.assert_allclose(bounds, (2.002 * 0.9, 3.998 * 1.1))


def drawn_data_set(count: int, seed: int, name: str = "mnist") -> Dataset:
    """Return images drawn by the tiny model as a data set, with each label in turn."""
    labels = np.arange(count) % 3
    images = draw(tiny_model(), count, seed=seed, label=labels)
    return Dataset(name, images, labels, GREY.classes, "")


@pytest.mark.parametrize("name", ["mnist", "images"])
def test_sample_quality_fields(name: str) -> None:
    checkpoint = Checkpoint("tiny", tiny_model(), {"defaults": {"guidance": 2.0, "top_p": 0.95}})
    classifier = train(bars(60), replace(CONFIG, epochs=1), CPU)
    real, training = drawn_data_set(45, seed=1000, name=name), bars(60)
    reported: list[int] = []
    quality = evaluate_samples(
        checkpoint, classifier, training, real, 30, with_label=True, seed=7,
        progress=reported.append,
    )  # fmt: skip
    assert sum(reported) == 60
    # Every third image is left out: 0, 1, 3, 4, 6, …
    chosen = real.take(np.arange(30) * 45 // 30)
    assert chosen.labels is not None
    labels = (
        [0, 1, 2] * 10 if name == "mnist" else chosen.labels.tolist()
    )  # the test images' labels
    drawn = generate(tiny_model(), 30, seed=7, label=labels, guidance=2, top_p=0.95)
    seen, features = classifier.predict(drawn.images)
    assert quality.samples == 30
    assert quality.class_accuracy == (seen == labels).mean()
    assert quality.accuracy == accuracy(classifier, real)
    assert quality.majority_accuracy == majority_accuracy(real) == 1 / 3
    assert "meaningless" in str(replace(quality, accuracy=0.35))
    assert "meaningless" not in str(replace(quality, accuracy=0.95))
    _, real_features = classifier.predict(chosen.images)
    assert quality.frechet_distance == pytest.approx(frechet_distance(features, real_features))
    _, learned = classifier.predict(training.images[::2])
    assert quality.real_frechet_distance == pytest.approx(frechet_distance(learned, real_features))
    least, most = quality.min_bits, quality.max_bits
    assert quality.below == (drawn.bits_per_dim < least).sum()
    assert quality.above == (drawn.bits_per_dim > most).sum()
    assert quality.outlier_share == (quality.below + quality.above) / 30
    assert "not the Inception FID" in str(quality)
    few = "at most as many samples as it has features"
    assert (few in str(quality)) == (quality.samples <= quality.features)
    assert few in str(replace(quality, samples=quality.features))
    assert few not in str(replace(quality, samples=quality.features + 1))
    assert f"{quality.class_accuracy:.1%} are classified as their label" in str(quality)


def test_own_samples_score_better_than_foreign_images() -> None:
    checkpoint = Checkpoint("tiny", tiny_model())
    classifier = train(bars(60), replace(CONFIG, epochs=1), CPU)
    own, foreign = drawn_data_set(60, seed=1000), bars(60)
    near = evaluate_samples(checkpoint, classifier, own, own, 60, with_label=True)
    assert near.real_frechet_distance == pytest.approx(0, abs=1e-6)
    assert near.outlier_share < 0.2
    far = evaluate_samples(checkpoint, classifier, foreign, foreign, 60)
    assert far.class_accuracy is None
    assert "class" not in str(far).split(";")[0].replace("classifier", "")
    assert far.frechet_distance > near.frechet_distance
    plain = SamplingDefaults()
    same = evaluate_samples(checkpoint, classifier, own, own, 60, sampling=plain, with_label=True)
    assert same == near


def test_invalid_sample_evaluations_are_rejected() -> None:
    checkpoint, data = Checkpoint("tiny", tiny_model()), bars(12)
    classifier = Classifier((GREY.height, GREY.width, 1), 3, CONFIG).eval()
    for samples in (1, 13):
        with pytest.raises(ValueError, match="samples must be 2 to 12"):
            evaluate_samples(checkpoint, classifier, data, data, samples)
    named = replace(data, classes=("a", "b", "c"))
    with pytest.raises(ValueError, match="classes are not the model's"):
        evaluate_samples(checkpoint, classifier, named, named, 4, with_label=True)


@pytest.mark.slow
def test_classifier_learns_mnist(data_dir: Path) -> None:
    """One epoch on a third of MNIST reaches an accuracy of 97 %."""
    training = load_dataset("mnist", "train", data_dir).take(slice(20_000))
    classifier = train(training, ClassifierConfig.for_dataset(training, 1), CPU)
    assert accuracy(classifier, load_dataset("mnist", "test", data_dir)) > 0.97


def test_inpainting_results() -> None:
    """Images of one colour, so that the squared error is easy to compute."""
    images = np.full((3, GREY.height, GREY.width, 1), 200, np.uint8)
    test = Dataset("same", images, np.zeros(3, np.int64), GREY.classes)
    checkpoint = Checkpoint("tiny", tiny_model())
    reported: list[InpaintingResult] = []
    results = evaluate_inpainting(checkpoint, test, (1, 4), on_result=reported.append)
    assert results == reported
    assert [(one.hole, one.particles) for one in results] == [
        (hole, count) for hole in ("middle", "upper half", "every other row") for count in (1, 4)
    ]
    known = inpainting_masks(GREY.height, GREY.width)["middle"]
    completed = generate(checkpoint, 3, given=images, known=known)
    error = np.square((completed.images[:, ~known] / 255.0) - 200 / 255).mean()
    assert results[0].squared_error == pytest.approx(error)
    assert results[0].class_accuracy is None


def test_small_images_have_fewer_masks() -> None:
    assert [*inpainting_masks(1, 9)] == []
    assert [*inpainting_masks(9, 1)] == ["upper half", "every other row"]
    assert [*inpainting_masks(9, 9)] == ["middle", "upper half", "every other row"]


def test_inpainting_masks() -> None:
    known = inpainting_masks(28, 28)
    assert (~known["middle"]).sum() == 64
    assert not known["middle"][10:18, 10:18].any()
    assert known["upper half"].sum() == 14 * 28
    assert known["upper half"][14:].all()
    assert known["every other row"][::2].all()


def test_labels_and_temperature_of_both_image_sets() -> None:
    checkpoint = Checkpoint("tiny", tiny_model(), {"defaults": {"guidance": 2.0}})
    classifier = train(bars(60), replace(CONFIG, epochs=1), CPU)
    real = drawn_data_set(45, seed=1000)
    quality = evaluate_samples(
        checkpoint, classifier, bars(60), real, 30, with_label=True, temperature=0.5,
    )  # fmt: skip
    chosen = real.take(np.arange(30) * 45 // 30)
    assert chosen.labels is not None
    known = np.ones((GREY.height, GREY.width), np.bool_)
    measured = generate(
        tiny_model(), 30, label=chosen.labels, given=chosen.images, known=known,
    )  # fmt: skip
    assert (quality.min_bits, quality.max_bits) == typical_range(measured.bits_per_dim)
    drawn = generate(tiny_model(), 30, label=[0, 1, 2] * 10, guidance=2, temperature=0.5)
    features = [classifier.predict(pictures)[1] for pictures in (drawn.images, chosen.images)]
    assert quality.frechet_distance == pytest.approx(frechet_distance(*features))


def test_guidance_needs_labels() -> None:
    classifier, data = train(bars(60), replace(CONFIG, epochs=1), CPU), bars(12)
    guided = Checkpoint("tiny", tiny_model(), {"defaults": {"guidance": 2.0}})
    plain = Checkpoint("tiny", tiny_model())
    one, other = (evaluate_samples(model, classifier, data, data, 6) for model in (guided, plain))
    assert one == other


def test_augmentation_mirrors_some_images() -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (40, 4, 5, 3), np.uint8)
    config = replace(CONFIG, shift=0, mirror=True)
    moved = _augment(pictures, config, np.random.default_rng(1))
    mirrored = (moved == pictures[:, :, ::-1]).all((1, 2, 3))
    assert 8 < mirrored.sum() < 32
    np.testing.assert_array_equal(moved[~mirrored], pictures[~mirrored])


def test_inpainting_class_accuracy() -> None:
    data = bars(9, seed=1)
    checkpoint, classifier = Checkpoint("tiny", tiny_model()), train(bars(240), CONFIG, CPU)
    results = evaluate_inpainting(checkpoint, data, (4,), classifier=classifier)
    for result in results:
        known = inpainting_masks(GREY.height, GREY.width)[result.hole]
        completed = generate(checkpoint, 9, given=data.images, known=known, particles=4)
        assert (
            result.class_accuracy == (classifier.predict(completed.images)[0] == data.labels).mean()
        )
        assert result.bits_per_dim == pytest.approx(completed.bits_per_dim.mean())
        error = np.square((completed.images / 255.0 - data.images / 255.0)[:, ~known]).mean()
        assert result.squared_error == pytest.approx(error)
    shares = [result.class_accuracy for result in results if result.class_accuracy is not None]
    assert min(shares) < accuracy(classifier, data)
