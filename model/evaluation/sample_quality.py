"""Sample quality: class accuracy, Fréchet distance and likelihood outliers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scanline.model.api import Label, generate
from scanline.model.checkpoint import Checkpoint, SamplingDefaults
from scanline.model.config import ModelConfig
from scanline.model.data.dataset import Dataset
from scanline.model.evaluation.classifier import (
    Classifier,
    accuracy,
    majority_accuracy,
    reliability_warning,
)
from scanline.model.evaluation.frechet import frechet_distance

_FEW_SAMPLES = (
    "the Fréchet distance is unreliable with at most as many samples as it has features ({}): use "
    "more samples, if there are more test images"
)
_TAILS = (0.1, 99.9)  # percentiles of the test images' bits/dim that bound the typical range
_MARGIN = 0.1  # relative margin on either side of that range


@dataclass(frozen=True, kw_only=True)
class SampleQuality:
    """Quality of a set of samples. Shares and accuracies are from 0 to 1.

    Attributes:
        samples: The number of samples.
        class_accuracy: Share of the samples that are classified as their label; None without
            labels.
        accuracy: Accuracy of the classifier on the test images.
        majority_accuracy: Accuracy of always predicting the most frequent class.
        frechet_distance: Fréchet distance to as many test images, in the classifier's features.
        real_frechet_distance: The same of as many training images.
        features: The number of features.
        below: Number of samples with fewer bits/dim than ``min_bits``.
        above: Number of samples with more bits/dim than ``max_bits``.
        min_bits: Lower bound of the typical bits/dim of test images.
        max_bits: Upper bound of it.
    """

    samples: int
    class_accuracy: float | None
    accuracy: float
    majority_accuracy: float
    frechet_distance: float
    real_frechet_distance: float
    features: int
    below: int
    above: int
    min_bits: float
    max_bits: float

    @property
    def outlier_share(self) -> float:
        """Share of the samples whose bits/dim lies outside the typical range of test images."""
        return (self.below + self.above) / self.samples

    def __str__(self) -> str:
        labelled = ""
        if self.class_accuracy is not None:
            labelled = f"{self.class_accuracy:.1%} are classified as their label; "
        lines = [
            f"{labelled}the classifier is right on {self.accuracy:.2%} of the test images",
            f"Fréchet distance {self.frechet_distance:.2f} to as many test images in its "
            f"{self.features} features (training images: {self.real_frechet_distance:.2f}); not "
            "the Inception FID",
            f"{self.outlier_share:.1%} outliers: {self.above} above {self.max_bits:.3f} bits/dim, "
            f"{self.below} below {self.min_bits:.3f} ({_TAILS[0]} and {_TAILS[1]} percentiles of "
            "these test images, and a margin of a tenth)",
        ]
        if warning := reliability_warning(self.accuracy, self.majority_accuracy):
            lines.append(warning)
        if self.samples <= self.features:
            lines.append(_FEW_SAMPLES.format(self.features))
        return "\n".join(lines)


def evaluate_samples(
    checkpoint: Checkpoint,
    classifier: Classifier,
    training: Dataset,
    test: Dataset,
    samples: int,
    *,
    with_label: bool = False,
    sampling: SamplingDefaults | None = None,
    temperature: float = 1.0,
    seed: int = 0,
    progress: Callable[[int], object] = lambda done: None,
) -> SampleQuality:
    """Draw samples, sample j with seed ``seed + j``, and compare them with as many test images.

    Args:
        checkpoint: The model.
        classifier: A classifier of the data's classes.
        training: The training images.
        test: The test images.
        samples: The number of samples.
        with_label: Whether to draw with labels: each class in turn or, if the test images are from
            a folder, the labels of the test images.
        sampling: Guidance and top_p; None for the model's defaults.
        temperature: The sampling temperature.
        seed: The seed of the first sample.
        progress: Called with the number of images drawn or measured since the last call; the total
            is twice ``samples``.

    Raises:
        ValueError: As ``check_samples``.
    """
    config = checkpoint.model.config
    check_samples(config, training, test, samples, with_label)
    real, known = test.evenly_spaced(samples), np.ones((config.height, config.width), np.bool_)
    labels: list[Label] = [None] * samples
    true_labels: Sequence[Label] | NDArray[np.integer] = labels
    if with_label and real.labels is not None:
        labels, true_labels = real.labels.tolist(), real.labels
        if has_balanced_classes(test):
            labels = [j % len(config.classes) for j in range(samples)]
    sampling = sampling or checkpoint.defaults
    guidance = sampling.guidance if with_label else 1.0
    drawn = generate(
        checkpoint, samples, seed=seed, label=labels, temperature=temperature, top_p=sampling.top_p,
        guidance=guidance, progress=progress,
    )  # fmt: skip
    measured = generate(  # bits of fully known images, by the same decoder
        checkpoint, samples, label=true_labels, guidance=1, given=real.images, known=known,
        progress=progress,
    )  # fmt: skip
    predicted, features = classifier.predict(drawn.images)
    _, real_features = classifier.predict(real.images)
    _, training_features = classifier.predict(training.evenly_spaced(samples).images)
    low, high = typical_range(measured.bits_per_dim)
    return SampleQuality(
        samples=samples,
        class_accuracy=float((predicted == np.array(labels)).mean()) if with_label else None,
        accuracy=accuracy(classifier, test),
        majority_accuracy=majority_accuracy(test),
        frechet_distance=frechet_distance(features, real_features),
        real_frechet_distance=frechet_distance(training_features, real_features),
        features=features.shape[1],
        below=int((drawn.bits_per_dim < low).sum()),
        above=int((drawn.bits_per_dim > high).sum()),
        min_bits=low,
        max_bits=high,
    )


def check_samples(
    config: ModelConfig, training: Dataset, test: Dataset, samples: int, with_label: bool
) -> None:
    """Raise ``ValueError`` if there are too few images, or the classes are not the model's."""
    if not 2 <= samples <= min(len(test), len(training)):
        raise ValueError(
            f"samples must be 2 to {min(len(test), len(training)):,}, the number of images to "
            "compare them with"
        )
    if with_label and not config.classes == test.classes == training.classes:
        raise ValueError("the data's classes are not the model's; evaluate without labels")


def has_balanced_classes(test: Dataset) -> bool:
    """Return True for a published data set, which has equally many images of each class."""
    return not test.from_folder


def typical_range(bits_per_dim: NDArray[np.float64]) -> tuple[float, float]:
    """Return the range that holds nearly all bits/dim of real images, with a margin."""
    low, high = np.percentile(bits_per_dim, _TAILS)
    return float(low * (1 - _MARGIN)), float(high * (1 + _MARGIN))
