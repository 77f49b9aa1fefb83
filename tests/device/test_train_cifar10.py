"""Tests of training for a fixed time, on the CPU."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from scanline.model.checkpoint import load_checkpoint, save_checkpoint
from scanline.model.config import CIFAR10_CLASSES
from scanline.model.data.dataset import Dataset
from tests.conftest import random_network, tiny_config
from tests.device import train_cifar10
from tests.device.image_parts import write_parts
from tests.device.train_cifar10 import CONFIG, train_until

IMAGES = np.random.default_rng(0).integers(0, 256, (40, 3, 4, 3), np.uint8)
DATA = Dataset("cifar10", IMAGES, np.arange(40) % 10, CIFAR10_CLASSES)


@pytest.fixture
def start(tmp_path: Path) -> Path:
    """Save weights of a small network to start from."""
    config = tiny_config(
        height=3, width=4, channels=3, classes=CIFAR10_CLASSES, head="logistic_mixture"
    )
    path = tmp_path / "start.safetensors"
    save_checkpoint(path, random_network(config, dtype=torch.float32), {})
    return path


def test_the_number_of_steps_follows_from_the_time(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step seems to take a 40th of the time, of which a tenth is reserved."""
    monkeypatch.setattr(train_cifar10, "seconds_per_step", lambda *_: 100.0)
    monkeypatch.setattr(time, "monotonic", lambda: 1_000.0)
    trainer = train_until(
        5_000.0, start, DATA, replace(CONFIG, batch=4), tmp_path / "run", torch.device("cpu"),
        reserve=400.0, held=8,
    )  # fmt: skip
    assert trainer.step == trainer.config.steps == 36
    assert [one["step"] for one in trainer.validation] == [9, 18, 27, 36]
    assert trainer.held_out == 8
    saved = load_checkpoint(trainer.weights)
    assert saved.facts["steps"] == 36
    first = load_checkpoint(start).model.state_dict()
    assert any(not first[name].equal(x) for name, x in saved.model.state_dict().items())


def test_the_time_of_a_step_is_measured(start: Path, tmp_path: Path) -> None:
    config = replace(CONFIG, batch=4)
    trainer = train_cifar10.new_trainer(start, config, tmp_path / "run", torch.device("cpu"), 0)
    seconds = train_cifar10.seconds_per_step(trainer, DATA, 3)
    assert math.isfinite(seconds)
    assert seconds > 0
    assert trainer.step == 3


def test_too_little_time_for_a_step_is_an_error(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_cifar10, "seconds_per_step", lambda *_: 100.0)
    with pytest.raises(ValueError, match="steps must be at least 1"):
        train_until(
            time.monotonic(), start, DATA, CONFIG, tmp_path / "run", torch.device("cpu"),
            reserve=1.0, held=8,
        )  # fmt: skip


def test_the_command_trains_on_parts(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(train_cifar10, "seconds_per_step", lambda *_: 100.0)
    parts = write_parts(DATA, tmp_path, part_images=25)
    options = f"--from {start} --device cpu --batch 4 --held-out 8 --reserve 0"
    options += " --feed-forward 40"  # the weights to start from have 24
    train_cifar10.main(["450", str(tmp_path / "run"), *map(str, parts), *options.split()])
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == "100000.0 ms per step of 4 images, 4 steps"
    assert last.startswith(f"{tmp_path / 'run' / 'run.safetensors'}, trained on ")
    saved = load_checkpoint(tmp_path / "run" / "run.safetensors")
    assert saved.facts["steps"] == 4
    assert saved.model.config.d_ff == 40
