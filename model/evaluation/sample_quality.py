"""What a judge says of samples: are they of their class, near the real ones, none gone astray."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scanline.model.api import Label, generate
from scanline.model.checkpoint import Checkpoint, SamplingDefaults
from scanline.model.config import ModelConfig
from scanline.model.data.dataset import Dataset
from scanline.model.data.download import SOURCES
from scanline.model.evaluation.classifier import (
    Classifier,
    accuracy,
    majority_accuracy,
    reliability_warning,
)
from scanline.model.evaluation.frechet import frechet_distance

_FEW_SAMPLES = (
    "of no more samples than it has features, {}, a Fréchet distance says little: judge more, "
    "where there are more test images"
)
_TAILS = (0.1, 99.9)  # percentiles of the test images' bits/dim that bound what is ordinary
_MARGIN = 0.1  # of either, beyond it


@dataclass(frozen=True, kw_only=True)
class SampleQuality:
    """Figures of ``samples`` pictures; shares are of 1.

    Attributes:
        class_accuracy: Share of samples drawn with a label that the classifier assigns to it;
            None without labels.
        accuracy: The classifier's accuracy on the test images.
        majority_accuracy: Accuracy of always naming the most frequent class.
        frechet_distance: Fréchet distance to as many test images, in ``features`` features.
        real_frechet_distance: The same distance for as many training images.
        below, above: Samples with fewer bits/dim than ``min_bits`` or more than ``max_bits``,
            limits that few test images exceed.
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
        """The share of samples whose bits/dim lies outside the range of the test images."""
        return (self.below + self.above) / self.samples

    def __str__(self) -> str:
        in_class = ""
        if self.class_accuracy is not None:
            in_class = f"{self.class_accuracy:.1%} are taken for their class; "
        text = (
            f"{in_class}the classifier is right on {self.accuracy:.2%} of the test images\n"
            f"Fréchet distance {self.frechet_distance:.2f} to as many test images in its "
            f"{self.features} features (training images: {self.real_frechet_distance:.2f}); "
            "not the Inception FID\n"
            f"{self.outlier_share:.1%} astray: {self.above} above {self.max_bits:.3f} bits/dim, "
            f"{self.below} below {self.min_bits:.3f} ({_TAILS[0]} and {_TAILS[1]} percentiles of "
            "these test images, and a tenth of either beyond)"
        )
        if warning := reliability_warning(self.accuracy, self.majority_accuracy):
            text += f"\n{warning}"
        if self.samples <= self.features:
            text += f"\n{_FEW_SAMPLES.format(self.features)}"
        return text


def judge(
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
    """Draw samples, sample j of ``seed + j``, and judge them against as many test images.

    With a label, of each class in turn, or, beside a folder's test images, of as many of each class
    as of theirs. ``sampling`` is the model's own if None. ``progress`` is told of pictures drawn
    and pictures measured, twice as many as samples in all. Raises ``ValueError`` as ``check`` does.
    """
    config = checkpoint.model.config
    check(config, training, test, samples, with_label)
    real, known = spread(test, samples), np.ones((config.height, config.width), np.bool_)
    labels: list[Label] = [None] * samples
    true: Sequence[Label] | NDArray[np.integer] = labels
    if with_label and real.labels is not None:
        labels, true = real.labels.tolist(), real.labels
        if has_balanced_classes(test):
            labels = [j % len(config.classes) for j in range(samples)]
    sampling = sampling or checkpoint.defaults
    guidance = sampling.guidance if with_label else 1.0
    drawn = generate(
        checkpoint, samples, seed=seed, label=labels, temperature=temperature, top_p=sampling.top_p,
        guidance=guidance, progress=progress,
    )  # fmt: skip
    measured = generate(  # the same decoder's bits of pictures wholly known
        checkpoint, samples, label=true, guidance=1, given=real.images, known=known,
        progress=progress,
    )  # fmt: skip
    seen, features = classifier.predict(drawn.images)
    _, real_features = classifier.predict(real.images)
    _, training_features = classifier.predict(spread(training, samples).images)
    least, most = typical_range(measured.bits_per_dim)
    return SampleQuality(
        samples=samples,
        class_accuracy=float((seen == np.array(labels)).mean()) if with_label else None,
        accuracy=accuracy(classifier, test),
        majority_accuracy=majority_accuracy(test),
        frechet_distance=frechet_distance(features, real_features),
        real_frechet_distance=frechet_distance(training_features, real_features),
        features=features.shape[1],
        below=int((drawn.bits_per_dim < least).sum()),
        above=int((drawn.bits_per_dim > most).sum()),
        min_bits=least,
        max_bits=most,
    )


def check(
    config: ModelConfig, training: Dataset, test: Dataset, samples: int, with_label: bool
) -> None:
    """Raise ``ValueError`` on too few test or training images, or classes not the model's."""
    if not 2 <= samples <= min(len(test), len(training)):
        raise ValueError(
            f"samples must be 2 to {min(len(test), len(training)):,}, as many as there are images "
            "to compare them with"
        )
    if with_label and not config.classes == test.classes == training.classes:
        raise ValueError("the data's classes are not the model's; judge without labels")


def has_balanced_classes(test: Dataset) -> bool:
    """Whether samples are drawn of each class in turn: a published set has as many of each."""
    return test.name in SOURCES


def typical_range(bits_per_dim: NDArray[np.float64]) -> tuple[float, float]:
    """Give the bits/dim between which all but the strangest of real pictures lie, and a margin."""
    low, high = np.percentile(bits_per_dim, _TAILS)
    return float(low * (1 - _MARGIN)), float(high * (1 + _MARGIN))


def spread(data: Dataset, count: int) -> Dataset:
    """Take so many images evenly from a data set: the halves of MNIST's test set differ."""
    return data.take(np.arange(count) * len(data) // count)
