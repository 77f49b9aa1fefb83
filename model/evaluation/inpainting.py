"""Inpainting quality: test images with holes, completed with one and with many particles."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scanline.model.api import generate
from scanline.model.checkpoint import Checkpoint
from scanline.model.data.dataset import Dataset
from scanline.model.evaluation.classifier import Classifier


@dataclass(frozen=True, kw_only=True)
class InpaintingResult:
    """Results for test images with one kind of hole, each completed once.

    Attributes:
        hole: The kind of hole.
        particles: The number of particles per image.
        squared_error: Mean squared error inside the hole, for intensities from 0 to 1.
        class_accuracy: Share of the completed images that are classified correctly; None without
            a classifier.
        bits_per_dim: Mean bits/dim of the whole images.
        seconds: Time per image.
    """

    hole: str
    particles: int
    squared_error: float
    class_accuracy: float | None
    bits_per_dim: float
    seconds: float


def inpainting_masks(height: int, width: int) -> dict[str, NDArray[np.bool_]]:
    """Return the masks of known pixels, bool ``[height, width]``, by kind of hole.

    The hole in the middle is two sevenths of each side: 8 × 8 of MNIST's 28 × 28. Kinds that do not
    fit into the image are left out.
    """
    rows, columns = np.indices((height, width))
    tall, wide = round(height * 2 / 7), round(width * 2 / 7)
    top, left = (height - tall) // 2, (width - wide) // 2
    inside_rows = (rows >= top) & (rows < top + tall)
    kinds = {
        "middle": ~(inside_rows & (columns >= left) & (columns < left + wide)),
        "upper half": rows >= height // 2,
        "every other row": rows % 2 == 0,
    }
    return {name: known for name, known in kinds.items() if not known.all()}


def evaluate_inpainting(
    checkpoint: Checkpoint,
    test: Dataset,
    counts: Sequence[int],
    *,
    top_p: float | None = None,
    classifier: Classifier | None = None,
    on_result: Callable[[InpaintingResult], object] = lambda result: None,
) -> list[InpaintingResult]:
    """Complete every test image, image j with seed j, for each hole and number of particles.

    Args:
        checkpoint: The model.
        test: The images to complete.
        counts: The numbers of particles.
        top_p: Share of the probability to keep; None is the model's default. Only with 1 do
            particles approach the model's posterior.
        classifier: Classifier of the completed images, or None.
        on_result: Called with each result.

    Raises:
        ValueError: If the images do not fit the model, or ``top_p`` is out of range.
    """
    config, results = checkpoint.model.config, list[InpaintingResult]()
    for name, known in inpainting_masks(config.height, config.width).items():
        for count in counts:
            start = time.perf_counter()
            completed = generate(
                checkpoint, len(test), given=test.images, known=known, guidance=1, top_p=top_p,
                particles=count,
            )  # fmt: skip
            elapsed = time.perf_counter() - start
            difference = (completed.images[:, ~known] - test.images[:, ~known].astype(float)) / 255
            class_accuracy = None
            if classifier is not None and test.labels is not None:
                predicted, _ = classifier.predict(completed.images)
                class_accuracy = float((predicted == test.labels).mean())
            results.append(InpaintingResult(
                hole=name, particles=count,
                squared_error=float(np.square(difference).mean()), class_accuracy=class_accuracy,
                bits_per_dim=float(completed.bits_per_dim.mean()), seconds=elapsed / len(test),
            ))  # fmt: skip
            on_result(results[-1])
    return results
