"""Data sets as arrays, and validation splits."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from scanline.model.data.download import DataError


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images, with labels if there are classes.

    Attributes:
        name: Key of ``PUBLISHED``, or ``"images"`` for a folder of pictures.
        images: uint8 ``[N, H, W, C]``.
        labels: int64 ``[N]``, or None.
        classes: Name of each label, or ``()``.
        note: Remark that must accompany every figure measured on these images.
        seen: True if the evaluated model was trained on all of them.
        folder: Name of the folder they were read from, or ``""``.
    """

    name: str
    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64] | None
    classes: tuple[str, ...]
    note: str = ""
    seen: bool = False
    folder: str = ""

    @property
    def title(self) -> str:
        """Name to show with a figure."""
        return self.folder or self.name

    @property
    def from_folder(self) -> bool:
        """True if the images were read from a folder of pictures."""
        return self.name == "images"

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.dtype != np.uint8:
            raise ValueError("images must be uint8 [N, H, W, C]")
        if self.labels is not None and self.labels.shape != self.images.shape[:1]:
            raise ValueError("labels must be [N], one per image")

    def __len__(self) -> int:
        return len(self.images)

    def with_note(self, note: str) -> "Dataset":
        """Return the data set with another note appended."""
        return replace(self, note="; ".join(filter(None, (self.note, note))))

    def take(self, indices: slice | Sequence[int] | npt.NDArray[np.integer]) -> "Dataset":
        """Return the images and labels at ``indices``, in that order; views for a slice."""
        labels = None if self.labels is None else self.labels[indices]
        return replace(self, images=self.images[indices], labels=labels)

    def evenly_spaced(self, count: int) -> "Dataset":
        """Return ``count`` evenly spaced images, or all if there are fewer.

        They represent the data set better than its first images: the halves of MNIST's test set
        differ.
        """
        count = min(count, len(self))
        return self.take(np.arange(count) * len(self) // count)


def content_order(dataset: Dataset, seed: int) -> npt.NDArray[np.int64]:
    """Return a pseudo-random order ``[N]`` of the images, by a hash of the seed and their pixels.

    The relative order of two images does not depend on the others.
    """
    keys = [hashlib.sha256(seed.to_bytes(8) + x.tobytes()).digest() for x in dataset.images]
    return np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)


def split_validation(
    dataset: Dataset, held: int, seed: int, *, by_content: bool = False
) -> tuple[Dataset, Dataset]:
    """Split into (training, validation), identically for the same seed on every machine.

    Args:
        dataset: Images to split.
        held: Number of images to hold out.
        seed: Seed of the random choice.
        by_content: Hold out the first images in ``content_order``, in that order, so that images
            added to the data set change the split little. Images with the same pixels are all held
            out or all trained on, which may change their number. Otherwise choose by position;
            both parts keep the original order.

    Raises:
        DataError: If a part would be empty.
    """
    N = len(dataset)
    if not 0 < held < N:
        raise DataError(
            f"cannot hold out {held:,} of {N:,} images: hold out fewer, or train on more images"
        )
    # NumPy guarantees a stable stream for a bit generator, but not for Generator.permutation.
    random_raw = np.random.Philox(key=seed).random_raw
    order = content_order(dataset, seed) if by_content else np.argsort(random_raw(N), kind="stable")
    if by_content:
        held = _keep_twins_together(dataset.images[order], held)
    whole = dataset.with_note(f"validation: {held:,} of {N:,} images held out, seed {seed}")
    chosen = order[:held] if by_content else np.sort(order[:held])
    return whole.take(np.sort(order[held:])), whole.take(chosen)


def _keep_twins_together(images: npt.NDArray[np.uint8], held: int) -> int:
    """Return the number of images to hold out so that no two equal images are separated.

    Args:
        images: uint8 ``[N, H, W, C]`` in ``content_order``, where equal images are neighbours.
        held: Wanted number.

    Raises:
        DataError: If all images are equal.
    """
    N = len(images)
    fewer, more = held, held
    while fewer and np.array_equal(images[fewer - 1], images[held]):
        fewer -= 1
    if fewer:
        return fewer
    while more < N and np.array_equal(images[more], images[0]):
        more += 1
    if more == N:
        raise DataError(
            f"cannot hold out {held:,} of {N:,} images, because they are all the same: add other "
            "images, or hold out none (--hold-out 0)"
        )
    return more
