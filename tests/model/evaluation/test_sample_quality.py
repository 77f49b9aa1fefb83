"""The judge: its classifier learns, its distance and its counts are right, its figures repeat."""

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
RECIPE = ClassifierConfig(epochs=6, widths=(8, 8, 8), shift=1, mirror=False, features=6, batch=16)


def bars(count: int, seed: int = 0, channels: int = 1) -> Dataset:
    """Make noisy pictures with a bright bar: across, upright, or two of them."""
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
def test_the_classifier_learns_what_it_is_shown(channels: int) -> None:
    held: list[int] = []
    data = bars(240, channels=channels)
    classifier = train(data, RECIPE, CPU, held.append)
    assert sum(held) == 6 * 240
    unseen = bars(120, seed=1, channels=channels)
    assert accuracy(classifier, unseen) > 0.9
    seen, features = classifier.predict(unseen.images)
    assert seen.shape == (120,)
    assert features.shape == (120, 6)
    assert (seen == unseen.labels).mean() == accuracy(classifier, unseen)
    assert accuracy(classifier, replace(unseen, labels=(seen + 1) % 3)) == 0


def test_the_same_seed_and_pictures_give_the_same_classifier() -> None:
    data, short = bars(60), replace(RECIPE, epochs=1)
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


def test_a_classifier_is_kept_and_found_again(
    own_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data, short = bars(40), replace(RECIPE, epochs=1)
    held: list[int] = []
    first = load_or_train(data, short, CPU, held.append)
    assert sum(held) == 40
    again = load_or_train(data, short, CPU, held.append)
    assert sum(held) == 40
    np.testing.assert_array_equal(again.predict(data.images)[1], first.predict(data.images)[1])
    (file,) = own_cache.rglob("*.safetensors")
    assert file.name.startswith("bars-")
    for others, recipe in (
        (bars(40, seed=1), short),
        (replace(data, labels=np.arange(40) // 4 % 3), short),
        (data, replace(short, seed=1)),
        (data, replace(short, epochs=2)),
    ):
        before = sum(held)
        load_or_train(others, recipe, CPU, held.append)
        assert sum(held) > before
    file.write_bytes(b"damaged")
    before = sum(held)
    with caplog.at_level(logging.WARNING):
        load_or_train(data, short, CPU, held.append)
    assert sum(held) == before + 40
    assert "cannot be read" in caplog.text
    load_or_train(data, short, CPU, held.append)
    assert sum(held) == before + 40


def test_pictures_without_classes_are_refused() -> None:
    nameless = replace(bars(6), labels=None, classes=())
    for of in (train, load_or_train):
        with pytest.raises(ValueError, match="these images have none"):
            of(nameless, RECIPE, CPU)


def test_pictures_of_one_class_are_refused() -> None:
    alike = replace(bars(30), labels=np.zeros(30, np.int64))
    for of in (train, load_or_train):
        with pytest.raises(ValueError, match="at least two classes, and these images are of one"):
            of(alike, RECIPE, CPU)


def test_few_pictures_are_seen_until_they_are_known() -> None:
    data, seen = bars(60), list[int]()
    classifier = train(data, ClassifierConfig.for_dataset(data), CPU, seen.append)
    assert len(seen) >= 200
    assert max(seen) <= 15
    assert accuracy(classifier, bars(120, seed=1)) > 0.9


@pytest.mark.parametrize("steps", [1, 2, 4, 5])
def test_the_learning_rate_falls_to_the_end_however_few_steps(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[float] = []

    class Watched(torch.optim.AdamW):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            rates.append(self.param_groups[0]["lr"])
            super().step()

    monkeypatch.setattr(torch.optim, "AdamW", Watched)
    train(bars(60), replace(RECIPE, epochs=steps, batch=60), CPU)
    assert len(rates) == steps
    assert rates[-1] < RECIPE.rate / 1000


def test_the_published_sets_have_the_recipes_that_they_had() -> None:
    """Their classifiers are kept, and figures recorded by them."""
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


def test_a_classifier_no_better_than_chance_is_doubted() -> None:
    uneven = replace(bars(10), labels=np.array([0] * 7 + [1, 2, 2]))
    assert majority_accuracy(uneven) == 0.7
    said = reliability_warning(0.72, 0.7)
    assert "meaningless: the classifier is right on 72.0%" in said
    assert "most frequent class on 70.0%" in said
    assert reliability_warning(0.9, 0.7) == ""


def test_grey_and_colour_have_recipes_of_their_own() -> None:
    grey, colour = (
        ClassifierConfig.for_dataset(bars(3)),
        ClassifierConfig.for_dataset(bars(3, channels=3), 2, seed=5),
    )
    assert not grey.mirror  # a mirrored 2 is no 2
    assert colour.mirror
    assert (colour.epochs, colour.seed) == (2, 5)


def test_the_distance_is_that_of_the_gaussians() -> None:
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
    flat = x * [1, 1, 1, 1, 0]  # a feature that never fires
    assert frechet_distance(flat, flat) == pytest.approx(0, abs=1e-9)
    with pytest.raises(ValueError, match="two images"):
        frechet_distance(x, x[:1])


def test_ordinary_is_what_lies_between_the_outermost_thousandths_and_a_margin() -> None:
    bounds = typical_range(np.linspace(2.0, 4.0, 10_001))
    np.testing.assert_allclose(bounds, (2.002 * 0.9, 3.998 * 1.1))


def of_the_model(count: int, seed: int, name: str = "mnist") -> Dataset:
    """Give pictures that the tiny model drew, as if they were real, their labels in turn."""
    labels = np.arange(count) % 3
    images = draw(tiny_model(), count, seed=seed, label=labels)
    return Dataset(name, images, labels, GREY.classes, "")


@pytest.mark.parametrize("name", ["mnist", "images"])
def test_a_verdict_counts_what_was_drawn(name: str) -> None:
    checkpoint = Checkpoint("tiny", tiny_model(), {"defaults": {"guidance": 2.0, "top_p": 0.95}})
    classifier = train(bars(60), replace(RECIPE, epochs=1), CPU)
    real, training = of_the_model(45, seed=1000, name=name), bars(60)
    told: list[int] = []
    quality = evaluate_samples(
        checkpoint, classifier, training, real, 30, with_label=True, seed=7,
        progress=told.append,
    )  # fmt: skip
    assert sum(told) == 60
    # Every third of two is left out: 0, 1, 3, 4, 6, …
    chosen = real.take(np.arange(30) * 45 // 30)
    assert chosen.labels is not None
    labels = [0, 1, 2] * 10 if name == "mnist" else chosen.labels.tolist()  # a folder's own shares
    drawn = generate(tiny_model(), 30, seed=7, label=labels, guidance=2, top_p=0.95)
    seen, features = classifier.predict(drawn.images)
    assert quality.samples == 30
    assert quality.class_accuracy == (seen == labels).mean()
    assert quality.accuracy == accuracy(classifier, real)
    assert quality.majority_accuracy == majority_accuracy(real) == 1 / 3
    assert "meaningless" in str(replace(quality, accuracy=0.35))
    assert "meaningless" not in str(replace(quality, accuracy=0.95))
    _, theirs = classifier.predict(chosen.images)
    assert quality.frechet_distance == pytest.approx(frechet_distance(features, theirs))
    _, learned = classifier.predict(training.images[::2])
    assert quality.real_frechet_distance == pytest.approx(frechet_distance(learned, theirs))
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


def test_a_model_s_own_pictures_are_near_and_ordinary_and_foreign_ones_are_not() -> None:
    checkpoint = Checkpoint("tiny", tiny_model())
    classifier = train(bars(60), replace(RECIPE, epochs=1), CPU)
    own, foreign = of_the_model(60, seed=1000), bars(60)
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


def test_what_cannot_be_judged_is_refused() -> None:
    checkpoint, data = Checkpoint("tiny", tiny_model()), bars(12)
    classifier = Classifier((GREY.height, GREY.width, 1), 3, RECIPE).eval()
    for samples in (1, 13):
        with pytest.raises(ValueError, match="samples must be 2 to 12"):
            evaluate_samples(checkpoint, classifier, data, data, samples)
    named = replace(data, classes=("a", "b", "c"))
    with pytest.raises(ValueError, match="classes are not the model's"):
        evaluate_samples(checkpoint, classifier, named, named, 4, with_label=True)


@pytest.mark.slow
def test_the_real_digits_are_learned(data_dir: Path) -> None:
    """One pass over a third of MNIST is enough to be right on 97 of 100."""
    training = load_dataset("mnist", "train", data_dir).take(slice(20_000))
    classifier = train(training, ClassifierConfig.for_dataset(training, 1), CPU)
    assert accuracy(classifier, load_dataset("mnist", "test", data_dir)) > 0.97


def test_holes_are_completed_and_measured() -> None:
    """What is known is kept, so a hole in a picture of one colour is measured against that."""
    images = np.full((3, GREY.height, GREY.width, 1), 200, np.uint8)
    test = Dataset("same", images, np.zeros(3, np.int64), GREY.classes)
    checkpoint = Checkpoint("tiny", tiny_model())
    told: list[InpaintingResult] = []
    figures = evaluate_inpainting(checkpoint, test, (1, 4), on_result=told.append)
    assert figures == told
    assert [(one.hole, one.particles) for one in figures] == [
        (hole, count) for hole in ("middle", "upper half", "every other row") for count in (1, 4)
    ]
    known = inpainting_masks(GREY.height, GREY.width)["middle"]
    painted = generate(checkpoint, 3, given=images, known=known)
    error = np.square((painted.images[:, ~known] / 255.0) - 200 / 255).mean()
    assert figures[0].squared_error == pytest.approx(error)
    assert figures[0].class_accuracy is None


def test_a_picture_that_is_too_small_for_a_hole_has_none_of_it() -> None:
    assert [*inpainting_masks(1, 9)] == []
    assert [*inpainting_masks(9, 1)] == ["upper half", "every other row"]
    assert [*inpainting_masks(9, 9)] == ["middle", "upper half", "every other row"]


def test_holes_are_where_they_are_said_to_be() -> None:
    known = inpainting_masks(28, 28)
    assert (~known["middle"]).sum() == 64
    assert not known["middle"][10:18, 10:18].any()
    assert known["upper half"].sum() == 14 * 28
    assert known["upper half"][14:].all()
    assert known["every other row"][::2].all()


def test_real_pictures_have_their_own_labels_and_drawn_ones_the_temperature() -> None:
    checkpoint = Checkpoint("tiny", tiny_model(), {"defaults": {"guidance": 2.0}})
    classifier = train(bars(60), replace(RECIPE, epochs=1), CPU)
    real = of_the_model(45, seed=1000)
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


def test_without_a_label_nothing_is_guided() -> None:
    classifier, data = train(bars(60), replace(RECIPE, epochs=1), CPU), bars(12)
    guided = Checkpoint("tiny", tiny_model(), {"defaults": {"guidance": 2.0}})
    plain = Checkpoint("tiny", tiny_model())
    one, other = (evaluate_samples(model, classifier, data, data, 6) for model in (guided, plain))
    assert one == other


def test_some_pictures_are_mirrored() -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (40, 4, 5, 3), np.uint8)
    recipe = replace(RECIPE, shift=0, mirror=True)
    moved = _augment(pictures, recipe, np.random.default_rng(1))
    mirrored = (moved == pictures[:, :, ::-1]).all((1, 2, 3))
    assert 8 < mirrored.sum() < 32
    np.testing.assert_array_equal(moved[~mirrored], pictures[~mirrored])


def test_completed_pictures_are_looked_at_by_their_seeds() -> None:
    data = bars(9, seed=1)
    checkpoint, classifier = Checkpoint("tiny", tiny_model()), train(bars(240), RECIPE, CPU)
    figures = evaluate_inpainting(checkpoint, data, (4,), classifier=classifier)
    for figure in figures:
        known = inpainting_masks(GREY.height, GREY.width)[figure.hole]
        painted = generate(checkpoint, 9, given=data.images, known=known, particles=4)
        assert (
            figure.class_accuracy == (classifier.predict(painted.images)[0] == data.labels).mean()
        )
        assert figure.bits_per_dim == pytest.approx(painted.bits_per_dim.mean())
        error = np.square((painted.images / 255.0 - data.images / 255.0)[:, ~known]).mean()
        assert figure.squared_error == pytest.approx(error)
    shares = [figure.class_accuracy for figure in figures if figure.class_accuracy is not None]
    assert min(shares) < accuracy(classifier, data)
