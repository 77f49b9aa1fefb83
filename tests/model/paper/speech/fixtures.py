"""A learnable corpus, and small encoders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from scanline.model.paper.speech.encoder import Sizes
from scanline.model.paper.speech.table import TABLE3

CPU = torch.device("cpu")
SIZES = Sizes(stack=2, n_layers=1, n_heads=2, d_model=16, lstm_layers=1, lstm_size=8)
TASK = replace(
    TABLE3.presets["quick"], sizes=SIZES, batch=4, learning_rate=2e-2, lstm_learning_rate=5e-2
)


def write_speech(folder: Path, train: int = 24, test: int = 8) -> Path:
    """Write a learnable corpus: a phoneme is four frames in which its feature is high."""
    generator = np.random.default_rng(0)
    for split, count in (("train", train), ("validation", 4), ("test", test)):
        (folder / split).mkdir(parents=True)
        for number in range(count):
            steps = generator.integers(1, 4, generator.integers(2, 6))
            phonemes = steps.cumsum() % 4  # no phoneme is repeated
            frames = np.repeat(np.eye(4, dtype=np.float32)[phonemes], 4, 0)
            noise = 0.1 * generator.standard_normal(frames.shape, np.float32)
            np.save(folder / split / f"{number}.npy", frames + noise)
            (folder / split / f"{number}.txt").write_text(
                " ".join("abcd"[i] for i in phonemes) + "\n"
            )
    return folder
