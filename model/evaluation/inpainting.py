"""How well holes in real pictures are completed, by one particle and by many."""

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
    """Figures of test images with one kind of hole, each completed once.

    ``squared_error`` is the mean over the hole of the squared difference to the truth, intensities
    from 0 to 1; ``right`` the share whose class the classifier still sees, None without one;
    ``bits_per_dim`` that of the whole picture; ``seconds`` what one picture took.
    """

    hole: str
    particles: int
    squared_error: float
    class_accuracy: float | None
    bits_per_dim: float
    seconds: float


def inpainting_masks(height: int, width: int) -> dict[str, NDArray[np.bool_]]:
    """Give what is known around each kind of hole: bool ``[height, width]`` by its name.

    The hole in the middle is two sevenths of a side: 8 × 8 of MNIST's 28 × 28. Pictures too small
    for a kind do not have it.
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
    classifier: Classifier | None = None,
    tell: Callable[[InpaintingResult], object] = lambda completed: None,
) -> list[InpaintingResult]:
    """Complete every test image, picture j of seed j, with each number of particles.

    ``tell`` hears each figure as it is known. Raises ``ValueError`` where the images do not fit.
    """
    figures = []
    for name, known in inpainting_masks(
        checkpoint.model.config.height, checkpoint.model.config.width
    ).items():
        for count in counts:
            began = time.perf_counter()
            painted = generate(
                checkpoint, len(test), given=test.images, known=known, guidance=1, particles=count
            )
            took = time.perf_counter() - began
            difference = (painted.images[:, ~known] - test.images[:, ~known].astype(float)) / 255
            class_accuracy = None
            if classifier is not None and test.labels is not None:
                class_accuracy = float(
                    (classifier.predict(painted.images)[0] == test.labels).mean()
                )
            figures.append(InpaintingResult(
                hole=name, particles=count,
                squared_error=float(np.square(difference).mean()), class_accuracy=class_accuracy,
                bits_per_dim=float(painted.bits_per_dim.mean()), seconds=took / len(test),
            ))  # fmt: skip
            tell(figures[-1])
    return figures
