"""Results published in the paper's tables (Katharopoulos et al. 2020)."""

from __future__ import annotations

from typing import NamedTuple


class SpeechResult(NamedTuple):
    """A row of Table 3: phoneme error rate in percent and seconds per epoch."""

    error_percent: float
    seconds: float


class ImageResult(NamedTuple):
    """A row of Table 1 or 2: bits/dim and images/s on the authors' GPU."""

    bits_per_dim: float
    images_per_second: float


# Tables 1 and 2; the rows of the stateful softmax are from the supplement.
IMAGES: dict[str, dict[str, ImageResult]] = {
    "table1": {
        "softmax": ImageResult(0.621, 0.45),
        "stateful-softmax": ImageResult(0.621, 7.56),
        "lsh-1": ImageResult(0.745, 0.68),
        "lsh-4": ImageResult(0.676, 0.27),
        "linear": ImageResult(0.644, 142.8),
    },
    "table2": {
        "softmax": ImageResult(3.47, 0.004),
        "stateful-softmax": ImageResult(3.47, 0.32),
        "lsh-1": ImageResult(3.39, 0.015),
        "lsh-4": ImageResult(3.51, 0.005),
        "linear": ImageResult(3.40, 17.85),
    },
}

# Table 3: speech recognition, Wall Street Journal.
SPEECH: dict[str, SpeechResult] = {
    "bi-lstm": SpeechResult(10.94, 1047),
    "softmax": SpeechResult(5.12, 2711),
    "lsh-4": SpeechResult(9.33, 2250),
    "linear": SpeechResult(8.08, 824),
}

# Supplement: seconds per image on CPU and on GPU.
LATENCY: dict[str, dict[str, tuple[float, float]]] = {
    "mnist": {
        "softmax": (72.6, 10.2),
        "stateful-softmax": (7.4, 10.4),
        "lsh-1": (46.0, 19.2),
        "lsh-4": (112.0, 55.8),
        "linear": (5.5, 7.3),
    },
    "cifar10": {
        "softmax": (8651.4, 300.1),
        "stateful-softmax": (71.9, 70.4),
        "lsh-1": (2318.9, 221.6),
        "lsh-4": (5263.7, 683.9),
        "linear": (45.1, 61.3),
    },
}
