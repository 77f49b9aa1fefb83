"""Shared parts of the training tests: a small network, its data, and runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scanline.model.config import ModelConfig
from scanline.model.data.dataset import Dataset
from scanline.model.training.config import TrainingConfig
from scanline.model.training.stop_signal import StopSignal
from scanline.model.training.trainer import Trainer
from tests.conftest import tiny_config

CPU = torch.device("cpu")
CLASSES = ("up", "down")
MODEL = tiny_config(classes=CLASSES, n_layers=1)
CONFIG = TrainingConfig(
    steps=6, batch=4, seed=3, warmup=2, checkpoint_every=100, evaluate_every=100, precision="fp32"
)


def dataset(count: int = 22, seed: int = 0) -> Dataset:
    """Create learnable images: vertical gradients in two directions, with a little noise."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 2, count)
    ramp = np.arange(MODEL.height)[None, :, None, None] * 40
    ramp = np.where(labels[:, None, None, None] == 0, ramp, 160 - ramp)
    noise = generator.integers(0, 8, (count, MODEL.height, MODEL.width, 1))
    return Dataset("ramps", (ramp + noise).astype(np.uint8), labels.astype(np.int64), CLASSES)


def run(
    folder: Path,
    config: TrainingConfig = CONFIG,
    *,
    resume: bool = False,
    model: ModelConfig = MODEL,
    stop: StopSignal | None = None,
    validation: Dataset | None = None,
) -> Trainer:
    trainer = Trainer(model, config, folder, CPU)
    if resume:
        trainer.resume()
    trainer.train(dataset(), validation, stop or StopSignal(), quiet=True)
    return trainer


def assert_same_bits(one: Any, other: Any, where: str = "") -> None:
    """Assert that nested states are equal bit for bit."""
    assert type(one) is type(other), where
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_same_bits(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same_bits(a, b, f"{where}[{i}]")
    else:
        assert one == other, where


def state(trainer: Trainer) -> dict[str, Any]:
    return {
        "step": trainer.step,
        "model": dict(trainer.train_state.model.state_dict()),
        "average": dict(trainer.train_state.ema.state_dict()),
        "optimizers": [
            optimizer.state_dict()["state"] for optimizer in trainer.train_state.optimizers
        ],
    }


def weights_of(folder: Path) -> Path:
    """Return the weights file of a run."""
    return folder / f"{folder.name}.safetensors"


def log_of(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
