"""Small convolutional classifier for judging samples.

It is trained once on the training images of a data set, and cached in the user's cache folder.
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

log = logging.getLogger("scanline.classifier")

_BATCH = 500  # images per prediction batch, which bounds the memory
_WARM_UP = 0.25  # share of the steps with a rising learning rate
_MIN_STEPS = 200  # enough for a few images; with fewer, the batch norms hardly adapt
_MIN_GAIN = 0.25  # required share of the baseline's errors that the classifier avoids


@dataclass(frozen=True, kw_only=True)
class ClassifierConfig:
    """Architecture and training settings of a classifier.

    With the images they determine its weights, on one machine with the same number of threads.

    Attributes:
        epochs: Passes over the training images.
        widths: Output channels of the three convolutions.
        shift: Random shift of the training images, in pixels at most.
        mirror: Whether to mirror training images left to right half the time.
        features: Features before the last layer, which the Fréchet distance uses.
        version: Version of this module. Raise it if the code would train another network.
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
    version: int = 1

    @classmethod
    def for_dataset(
        cls, data: Dataset, epochs: int | None = None, seed: int = 0
    ) -> ClassifierConfig:
        """Return settings for grey drawings, or for colour photographs, which may be mirrored.

        A small data set gets smaller batches and, unless ``epochs`` is given, more epochs.
        """
        grey = data.images.shape[-1] == 1
        batch = min(cls.batch, max(4, len(data) // 4))
        enough = math.ceil(_MIN_STEPS / math.ceil(len(data) / batch))
        return cls(
            epochs=epochs or max(4 if grey else 6, enough), batch=batch, seed=seed,
            widths=(16, 32, 64) if grey else (32, 64, 128), shift=2 if grey else 3, mirror=not grey,
        )  # fmt: skip


class Classifier(nn.Module):
    """Three convolutions with pooling, and two linear layers, on uint8 images."""

    def __init__(self, shape: tuple[int, int, int], classes: int, config: ClassifierConfig) -> None:
        super().__init__()
        height, width, channels = shape
        layers: list[nn.Module] = [nn.BatchNorm2d(channels, affine=False)]
        for size in config.widths:
            layers += [
                nn.Conv2d(channels, size, 3, padding=1, bias=False),
                nn.MaxPool2d(2, ceil_mode=True),
                nn.BatchNorm2d(size),
                nn.ReLU(),
            ]
            height, width, channels = math.ceil(height / 2), math.ceil(width / 2), size
        self.convolutions = nn.Sequential(*layers)
        self.hidden = nn.Linear(channels * height * width, config.features)
        self.last = nn.Linear(config.features, classes)
        # From the start, so that a loaded classifier equals a trained one to the last bit.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def features(self, images: Tensor) -> Tensor:
        """Return the input of the last layer: uint8 ``[B, H, W, C]`` → ``[B, features]``."""
        x = images.permute(0, 3, 1, 2).float() / 255
        return F.relu(self.hidden(self.convolutions(x).flatten(1)))

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of the classes: ``[B, classes]``."""
        logits: Tensor = self.last(self.features(images))
        return logits

    @torch.no_grad()
    def predict(self, images: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the classes ``[n]`` and the features ``[n, F]`` of images ``[n, H, W, C]``."""
        classes, features = [], []
        for first in range(0, len(images), _BATCH):
            batch = torch.from_numpy(images[first : first + _BATCH].copy())
            batch_features = self.features(batch.to(self.last.weight.device))
            classes.append(self.last(batch_features).argmax(1).cpu().numpy())
            features.append(batch_features.double().cpu().numpy())
        return np.concatenate(classes), np.concatenate(features)


def accuracy(classifier: Classifier, data: Dataset) -> float:
    """Return the share of a data set's images that are classified correctly."""
    return float((classifier.predict(data.images)[0] == _labels(data)).mean())


def majority_accuracy(data: Dataset) -> float:
    """Return the accuracy of always predicting the most frequent class of a data set."""
    return float(np.bincount(_labels(data)).max() / len(data))


def reliability_warning(accuracy: float, baseline: float) -> str:
    """Return a warning if the accuracy is hardly above ``baseline``, else an empty string."""
    if accuracy > baseline + _MIN_GAIN * (1 - baseline):
        return ""
    return (
        f"these results are meaningless: the classifier is right on {accuracy:.1%} of the test "
        f"images, and always predicting the most frequent class on {baseline:.1%}; use more "
        "training images, or more --epochs"
    )


def has_classes_to_learn(data: Dataset) -> bool:
    """Return True if the data set has images of at least two classes."""
    return data.labels is not None and len(np.unique(data.labels)) > 1


def train(
    data: Dataset,
    config: ClassifierConfig,
    device: torch.device,
    progress: Callable[[int], object] = lambda done: None,
) -> Classifier:
    """Train a classifier on labelled images.

    ``progress`` is called with the number of images of each batch. Raises ``ValueError`` if the
    data has fewer than two classes.
    """
    all_labels = _training_labels(data)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        classifier = Classifier(_shape(data), len(data.classes), config)
    classifier.to(device).train()
    optimizer = torch.optim.AdamW(
        classifier.parameters(), lr=config.rate, weight_decay=config.weight_decay
    )
    per_epoch = math.ceil(len(data) / config.batch)
    steps = config.epochs * per_epoch
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, config.rate, total_steps=steps,
        pct_start=_WARM_UP if steps > 4 else 0.0,  # avoids torch's division by 0
    )  # fmt: skip
    for epoch in range(config.epochs):
        rng = np.random.default_rng([config.seed, epoch])
        # Equal parts, because a last batch with a single image would have no variance.
        for batch in np.array_split(rng.permutation(len(data)), per_epoch):
            images = torch.from_numpy(_augment(data.images[batch], config, rng)).to(device)
            labels = torch.from_numpy(all_labels[batch]).to(device)
            loss = F.cross_entropy(classifier(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            progress(len(batch))
    return classifier.eval()


def load_or_train(
    data: Dataset,
    config: ClassifierConfig,
    device: torch.device,
    progress: Callable[[int], object] = lambda done: None,
) -> Classifier:
    """Load the classifier of these images and settings from the cache, or train and cache it.

    Arguments and errors are those of ``train``.
    """
    path = cache_folder() / "classifiers" / f"{data.name}-{_key(data, config)}.safetensors"
    classifier = Classifier(_shape(data), len(data.classes), config)
    try:
        classifier.load_state_dict(safetensors.torch.load_file(path))
    except FileNotFoundError:
        pass
    except (OSError, RuntimeError, safetensors.SafetensorError) as error:
        log.warning("training the classifier again, because %s cannot be read: %s", path, error)
    else:
        return classifier.to(device).eval()
    classifier = train(data, config, device, progress)
    tensors = {name: tensor.cpu().contiguous() for name, tensor in classifier.state_dict().items()}
    _save_to_cache(
        path, safetensors.torch.save(tensors, {"recipe": json.dumps(dataclasses.asdict(config))})
    )
    return classifier


def _save_to_cache(path: Path, content: bytes) -> None:
    try:
        write_atomically(path, content)
    except OSError as error:
        log.warning("cannot cache the classifier: %s", error)


def _labels(data: Dataset) -> NDArray[np.int64]:
    if data.labels is None or not data.classes:
        raise ValueError(
            "the classifier needs images with classes, and these images have none: put each class "
            "into its own sub-folder"
        )
    return data.labels


def _training_labels(data: Dataset) -> NDArray[np.int64]:
    labels = _labels(data)
    if not has_classes_to_learn(data):
        raise ValueError(
            "the classifier needs at least two classes, and these images are of one: put images of "
            "each class into its own sub-folder"
        )
    return labels


def _shape(data: Dataset) -> tuple[int, int, int]:
    height, width, channels = data.images.shape[1:]
    return height, width, channels


def _key(data: Dataset, config: ClassifierConfig) -> str:
    """Return a cache key of the images, their labels and the settings."""
    digest = hashlib.sha256(json.dumps(dataclasses.asdict(config)).encode())
    digest.update(repr((data.images.shape, data.classes)).encode())
    digest.update(np.ascontiguousarray(data.images).data)
    digest.update(np.ascontiguousarray(_training_labels(data)).data)
    return digest.hexdigest()[:16]


def _augment(
    images: NDArray[np.uint8], config: ClassifierConfig, rng: np.random.Generator
) -> NDArray[np.uint8]:
    """Shift each image by a few random pixels, filled with black, and mirror some."""
    B, H, W, _ = images.shape
    shift = config.shift
    padded = np.pad(images, ((0, 0), (shift, shift), (shift, shift), (0, 0)))
    down, right = rng.integers(0, 2 * shift + 1, (2, B, 1))
    rows, columns = down + np.arange(H), right + np.arange(W)
    if config.mirror:
        columns = np.where(rng.random((B, 1)) < 0.5, columns[:, ::-1], columns)
    augmented: NDArray[np.uint8] = padded[
        np.arange(B)[:, None, None], rows[:, :, None], columns[:, None, :]
    ]
    return augmented
