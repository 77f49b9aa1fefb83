"""What a judge says of samples: are they of their class, near the real ones, none gone astray."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scanline.model.checkpoint import Checkpoint, Defaults
from scanline.model.config import ModelConfig
from scanline.model.data.download import SOURCES
from scanline.model.data.published import Dataset
from scanline.model.drawing import Label, paint
from scanline.model.judge.classifier import Classifier, accuracy, by_chance, doubt
from scanline.model.judge.frechet import frechet_distance

FEW = (
    "of no more samples than it has features, {}, a Fréchet distance says little: judge more, "
    "where there are more test images"
)
_TAILS = (0.1, 99.9)  # percentiles of the test images' bits/dim that bound what is ordinary
_MARGIN = 0.1  # of either, beyond it


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Figures of ``samples`` pictures; shares are of 1.

    ``right``: of those drawn of a class, the share that the classifier takes for it; None of
    pictures without a label. ``accuracy``: its share of the test images, and ``guessed`` that of
    always naming the commonest class. ``distance``: the Fréchet distance to as many test images in
    its ``features`` features, and ``real_distance`` that of as many training images. ``below`` and
    ``above``: how many have less bits/dim than ``least``, or more than ``most``, which few test
    images have.
    """

    samples: int
    right: float | None
    accuracy: float
    guessed: float
    distance: float
    real_distance: float
    features: int
    below: int
    above: int
    least: float
    most: float

    @property
    def astray(self) -> float:
        """The share of samples whose bits/dim lies outside the range of the test images."""
        return (self.below + self.above) / self.samples

    def __str__(self) -> str:
        taken = "" if self.right is None else f"{self.right:.1%} are taken for their class; "
        return (
            f"{taken}the classifier is right on {self.accuracy:.2%} of the test images\n"
            f"Fréchet distance {self.distance:.2f} to as many test images in its {self.features} "
            f"features (training images: {self.real_distance:.2f}); not the Inception FID\n"
            f"{self.astray:.1%} astray: {self.above} above {self.most:.3f} bits/dim, {self.below} "
            f"below {self.least:.3f} ({_TAILS[0]} and {_TAILS[1]} percentiles of these test "
            "images, and a tenth of either beyond)"
            + (f"\n{doubted}" if (doubted := doubt(self.accuracy, self.guessed)) else "")
            + (f"\n{FEW.format(self.features)}" if self.samples <= self.features else "")
        )


def judge(
    checkpoint: Checkpoint,
    classifier: Classifier,
    training: Dataset,
    test: Dataset,
    samples: int,
    *,
    with_label: bool = False,
    style: Defaults | None = None,
    temperature: float = 1.0,
    seed: int = 0,
    progress: Callable[[int], object] = lambda done: None,
) -> Verdict:
    """Draw samples, sample j of ``seed + j``, and judge them against as many test images.

    With a label, of each class in turn, or, beside a folder's test images, of as many of each class
    as of theirs. ``style`` is the model's own if None. ``progress`` is told of pictures drawn and
    pictures measured, twice as many as samples in all. Raises ``ValueError`` as ``check`` does.
    """
    config = checkpoint.model.config
    check(config, training, test, samples, with_label)
    real, known = spread(test, samples), np.ones((config.height, config.width), np.bool_)
    labels: list[Label] = [None] * samples
    true: Sequence[Label] | NDArray[np.integer] = labels
    if with_label and real.labels is not None:
        labels, true = real.labels.tolist(), real.labels
        if in_turn(test):
            labels = [j % len(config.classes) for j in range(samples)]
    style = style or checkpoint.defaults
    guidance = style.guidance if with_label else 1.0
    drawn = paint(
        checkpoint, samples, seed=seed, label=labels, temperature=temperature, top_p=style.top_p,
        guidance=guidance, progress=progress,
    )  # fmt: skip
    measured = paint(  # the same decoder's bits of pictures wholly known
        checkpoint, samples, label=true, guidance=1, given=real.images, known=known,
        progress=progress,
    )  # fmt: skip
    seen, features = classifier.look(drawn.pictures)
    _, real_features = classifier.look(real.images)
    _, training_features = classifier.look(spread(training, samples).images)
    least, most = ordinary_range(measured.bits_per_dim)
    return Verdict(
        samples=samples,
        right=float((seen == np.array(labels)).mean()) if with_label else None,
        accuracy=accuracy(classifier, test),
        guessed=by_chance(test),
        distance=frechet_distance(features, real_features),
        real_distance=frechet_distance(training_features, real_features),
        features=features.shape[1],
        below=int((drawn.bits_per_dim < least).sum()),
        above=int((drawn.bits_per_dim > most).sum()),
        least=least,
        most=most,
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


def in_turn(test: Dataset) -> bool:
    """Whether samples are drawn of each class in turn: a published set has as many of each."""
    return test.name in SOURCES


def ordinary_range(bits_per_dim: NDArray[np.float64]) -> tuple[float, float]:
    """Give the bits/dim between which all but the strangest of real pictures lie, and a margin."""
    low, high = np.percentile(bits_per_dim, _TAILS)
    return float(low * (1 - _MARGIN)), float(high * (1 + _MARGIN))


def spread(data: Dataset, count: int) -> Dataset:
    """Take so many images evenly from a data set: the halves of MNIST's test set differ."""
    return data.take(np.arange(count) * len(data) // count)
