"""Labelled images and classifier settings for the evaluation tests."""

from __future__ import annotations

import numpy as np
import torch

from scanline.model.api import draw
from scanline.model.data.dataset import Dataset
from scanline.model.evaluation.classifier import ClassifierConfig
from tests.service.fixtures import GREY, tiny_model

CPU = torch.device("cpu")
CONFIG = ClassifierConfig(epochs=6, widths=(8, 8, 8), shift=1, mirror=False, features=6, batch=16)


def bars(count: int, seed: int = 0, channels: int = 1) -> Dataset:
    """Return noisy images with a horizontal bar, a vertical bar, or both."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 90, (count, GREY.height, GREY.width, channels), np.uint8)
    labels = np.arange(count) % 3
    for image, label in zip(images, labels, strict=True):
        if label != 0:
            image[:, rng.integers(1, 4)] = 220
        if label != 1:
            image[rng.integers(1, 5)] = 220
    return Dataset("bars", images, labels, GREY.classes, "")


def drawn_data_set(count: int, seed: int, name: str = "mnist") -> Dataset:
    """Return images drawn by the tiny model as a data set, with each label in turn."""
    labels = np.arange(count) % 3
    images = draw(tiny_model(), count, seed=seed, label=labels)
    return Dataset(name, images, labels, GREY.classes, "")
