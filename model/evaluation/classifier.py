"""The judge's eye: a small convolutional network that says which class a picture is of.

Trained on a data set's real training images, once, and kept in the user's cache folder.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from scanline.kernels.cache import cache_folder
from scanline.model.atomic_files import write_atomically
from scanline.model.data.dataset import Dataset

log = logging.getLogger("scanline.judge")

_BATCH = 500  # pictures looked at together: bounds memory
_WARM_UP = 0.25  # share of the steps in which the learning rate rises
_MIN_STEPS = 200  # that tell classes of few images apart; of fewer, its norms hardly begin
_MIN_GAIN = 0.25  # share of what guessing gets wrong that a classifier worth asking gets right


@dataclass(frozen=True, kw_only=True)
class ClassifierConfig:
    """How a classifier comes to be: with the images, all that decides its weights.

    Equal on one machine with as many threads. ``widths`` are the features of its three convolutions
    and ``features`` those before its last layer. In each of ``epochs`` passes a picture is shifted
    by up to ``shift`` pixels and, with ``mirror``, turned left to right half the time.
    """

    epochs: int
    widths: tuple[int, int, int]
    shift: int
    mirror: bool
    features: int = 64
    batch: int = 128
    rate: float = 0.006
    weight_decay: float = 0.02
    seed: int = 0
    version: int = 1  # of this file: raised when its code trains another network

    @classmethod
    def for_dataset(
        cls, data: Dataset, epochs: int | None = None, seed: int = 0
    ) -> ClassifierConfig:
        """Choose for grey drawings or colour photographs, which may be mirrored.

        Few images are seen in smaller batches and, unless ``epochs`` says how often, more often.
        """
        grey = data.images.shape[-1] == 1
        batch = min(cls.batch, max(4, len(data) // 4))
        enough = math.ceil(_MIN_STEPS / math.ceil(len(data) / batch))
        return cls(
            epochs=epochs or max(4 if grey else 6, enough), batch=batch, seed=seed,
            widths=(16, 32, 64) if grey else (32, 64, 128), shift=2 if grey else 3, mirror=not grey,
        )  # fmt: skip


class Classifier(nn.Module):
    """Three convolutions, each with a pooling, and two linear layers, over uint8 pictures."""

    def __init__(self, shape: tuple[int, int, int], classes: int, recipe: ClassifierConfig) -> None:
        super().__init__()
        height, width, channels = shape
        layers: list[nn.Module] = [nn.BatchNorm2d(channels, affine=False)]
        for size in recipe.widths:
            layers += [
                nn.Conv2d(channels, size, 3, padding=1, bias=False),
                nn.MaxPool2d(2, ceil_mode=True),
                nn.BatchNorm2d(size),
                nn.ReLU(),
            ]
            height, width, channels = math.ceil(height / 2), math.ceil(width / 2), size
        self.convolutions = nn.Sequential(*layers)
        self.hidden = nn.Linear(channels * height * width, recipe.features)
        self.last = nn.Linear(recipe.features, classes)
        # From the start, or one that is loaded would differ in the last bit from one just trained.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def features(self, pictures: Tensor) -> Tensor:
        """Give what the last layer sees of pictures, uint8 ``[B, H, W, C]`` → ``[B, features]``."""
        x = pictures.permute(0, 3, 1, 2).float() / 255
        return F.relu(self.hidden(self.convolutions(x).flatten(1)))

    def forward(self, pictures: Tensor) -> Tensor:
        """Give the logits of each class: ``[B, classes]``."""
        logits: Tensor = self.last(self.features(pictures))
        return logits

    @torch.no_grad()
    def predict(self, pictures: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Say the class of each picture ``[n, H, W, C]``, ``[n]``, and its features, ``[n, F]``."""
        classes, features = [], []
        for first in range(0, len(pictures), _BATCH):
            batch = torch.from_numpy(pictures[first : first + _BATCH].copy())
            seen = self.features(batch.to(self.last.weight.device))
            classes.append(self.last(seen).argmax(1).cpu().numpy())
            features.append(seen.double().cpu().numpy())
        return np.concatenate(classes), np.concatenate(features)


def accuracy(classifier: Classifier, data: Dataset) -> float:
    """Give the share of a data set's images that the classifier takes for what they are."""
    return float((classifier.predict(data.images)[0] == _labels(data)).mean())


def majority_accuracy(data: Dataset) -> float:
    """Give the accuracy of naming the commonest class of a data set for each of its images."""
    return float(np.bincount(_labels(data)).max() / len(data))


def reliability_warning(right: float, baseline: float) -> str:
    """Say so where a classifier is hardly better than chance; else nothing."""
    if right > baseline + _MIN_GAIN * (1 - baseline):
        return ""
    return (
        f"these figures mean nothing: the classifier is right on {right:.1%} of the test images "
        f"and naming their commonest class on {baseline:.1%}; give more training images, "
        "or --epochs"
    )


def has_classes_to_learn(data: Dataset) -> bool:
    """Whether a classifier can learn from a data set: it has images of two classes or more."""
    return data.labels is not None and len(np.unique(data.labels)) > 1


def train(
    data: Dataset,
    recipe: ClassifierConfig,
    device: torch.device,
    progress: Callable[[int], object] = lambda done: None,
) -> Classifier:
    """Train a classifier on labelled images; ``progress`` is told how many each batch held.

    Raises ``ValueError`` where the data has no classes, or images of one alone.
    """
    of = _training_labels(data)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        classifier = Classifier(_shape(data), len(data.classes), recipe)
    classifier.to(device).train()
    optimizer = torch.optim.AdamW(
        classifier.parameters(), lr=recipe.rate, weight_decay=recipe.weight_decay
    )
    per_epoch = math.ceil(len(data) / recipe.batch)
    steps = recipe.epochs * per_epoch
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, recipe.rate, total_steps=steps,
        pct_start=_WARM_UP if steps > 4 else 0.0,  # torch divides by 0 where the first is the top
    )  # fmt: skip
    for epoch in range(recipe.epochs):
        rng = np.random.default_rng([recipe.seed, epoch])
        # Parts as equal as can be: a last one of a single image would have no variance.
        for batch in np.array_split(rng.permutation(len(data)), per_epoch):
            pictures = torch.from_numpy(_augment(data.images[batch], recipe, rng)).to(device)
            labels = torch.from_numpy(of[batch]).to(device)
            loss = F.cross_entropy(classifier(pictures), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            progress(len(batch))
    return classifier.eval()


def load_or_train(
    data: Dataset,
    recipe: ClassifierConfig,
    device: torch.device,
    progress: Callable[[int], object] = lambda done: None,
) -> Classifier:
    """Give the classifier of these images and this recipe: from the cache, or trained and kept.

    All else is as for ``train``.
    """
    path = cache_folder() / "judge" / f"{data.name}-{_key(data, recipe)}.safetensors"
    classifier = Classifier(_shape(data), len(data.classes), recipe)
    try:
        classifier.load_state_dict(safetensors.torch.load_file(path))
    except FileNotFoundError:
        pass
    except (OSError, RuntimeError, safetensors.SafetensorError) as error:
        log.warning("training the judge's classifier again, %s cannot be read: %s", path, error)
    else:
        return classifier.to(device).eval()
    classifier = train(data, recipe, device, progress)
    tensors = {name: tensor.cpu().contiguous() for name, tensor in classifier.state_dict().items()}
    _save_to_cache(
        path, safetensors.torch.save(tensors, {"recipe": json.dumps(dataclasses.asdict(recipe))})
    )
    return classifier


def _save_to_cache(path: Path, content: bytes) -> None:
    try:
        write_atomically(path, content)
    except OSError as error:
        log.warning("the judge's classifier is not kept for the next time: %s", error)


def _labels(data: Dataset) -> NDArray[np.int64]:
    if data.labels is None or not data.classes:
        raise ValueError(
            "the judge's classifier learns from classes, and these images have none: put them into "
            "sub-folders"
        )
    return data.labels


def _training_labels(data: Dataset) -> NDArray[np.int64]:
    labels = _labels(data)
    if not has_classes_to_learn(data):
        raise ValueError(
            "the judge's classifier learns to tell classes apart, and these images are of one: "
            "give images of two classes or more, each in a sub-folder"
        )
    return labels


def _shape(data: Dataset) -> tuple[int, int, int]:
    height, width, channels = data.images.shape[1:]
    return height, width, channels


def _key(data: Dataset, recipe: ClassifierConfig) -> str:
    """Name what a classifier follows from: the images, their labels and the recipe."""
    digest = hashlib.sha256(json.dumps(dataclasses.asdict(recipe)).encode())
    digest.update(repr((data.images.shape, data.classes)).encode())
    digest.update(np.ascontiguousarray(data.images).data)
    digest.update(np.ascontiguousarray(_training_labels(data)).data)
    return digest.hexdigest()[:16]


def _augment(
    pictures: NDArray[np.uint8], recipe: ClassifierConfig, rng: np.random.Generator
) -> NDArray[np.uint8]:
    """Shift each picture by its own few pixels, black coming in, and mirror some."""
    B, H, W, _ = pictures.shape
    shift = recipe.shift
    padded = np.pad(pictures, ((0, 0), (shift, shift), (shift, shift), (0, 0)))
    down, right = rng.integers(0, 2 * shift + 1, (2, B, 1))
    rows, columns = down + np.arange(H), right + np.arange(W)
    if recipe.mirror:
        columns = np.where(rng.random((B, 1)) < 0.5, columns[:, ::-1], columns)
    moved: NDArray[np.uint8] = padded[
        np.arange(B)[:, None, None], rows[:, :, None], columns[:, None, :]
    ]
    return moved
