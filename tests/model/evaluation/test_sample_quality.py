"""Sample quality: its fields, outliers and errors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scanline.model.api import generate
from scanline.model.checkpoint import Checkpoint, SamplingDefaults
from scanline.model.evaluation.classifier import (
    Classifier,
    accuracy,
    majority_accuracy,
    train,
)
from scanline.model.evaluation.frechet import frechet_distance
from scanline.model.evaluation.sample_quality import evaluate_samples, typical_range
from tests.model.evaluation.fixtures import CONFIG, CPU, bars, drawn_data_set
from tests.service.fixtures import GREY, tiny_model

pytestmark = pytest.mark.usefixtures("cache_folder")  # for cached classifiers


def test_typical_range() -> None:
    bounds = typical_range(np.linspace(2.0, 4.0, 10_001))
    np.testing.assert_allclose(bounds, (2.002 * 0.9, 3.998 * 1.1))


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
    # A folder's samples have the labels of the test images.
    labels = [0, 1, 2] * 10 if name == "mnist" else chosen.labels.tolist()
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


def test_invalid_sample_evaluations_are_rejected() -> None:
    checkpoint, data = Checkpoint("tiny", tiny_model()), bars(12)
    classifier = Classifier((GREY.height, GREY.width, 1), 3, CONFIG).eval()
    for samples in (1, 13):
        with pytest.raises(ValueError, match="samples must be 2 to 12"):
            evaluate_samples(checkpoint, classifier, data, data, samples)
    named = replace(data, classes=("a", "b", "c"))
    with pytest.raises(ValueError, match="classes are not the model's"):
        evaluate_samples(checkpoint, classifier, named, named, 4, with_label=True)
