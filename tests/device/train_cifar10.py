"""Training of the widened ``cifar10`` weights for a fixed time, on a device without the data set.

``python -m tests.device.train_cifar10 SECONDS FOLDER part1.npz part2.npz`` measures the speed, and
chooses the number of steps so that the learning rates have fallen to zero when the time is up.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from scanline.model.checkpoint import SHIPPED_WEIGHTS, read_config
from scanline.model.data.dataset import Dataset, split_validation
from scanline.model.training.config import TrainingConfig
from scanline.model.training.stop_signal import StopSignal
from scanline.model.training.trainer import Trainer
from tests.device.image_parts import read_parts

CONFIG = TrainingConfig(
    steps=10**6, batch=64, learning_rate=1.75e-3, edge_rate=1.25e-4, muon_rate=0.01, decay=0.85,
    warmup=200, mirror=True, seed=26, checkpoint_every=1500, evaluate_every=10**6,
)  # fmt: skip
HELD_OUT = 500  # images for validation, which takes time too
VALIDATIONS = 4
FEED_FORWARD = 1280  # features; 512 are too few for the data: training bits 2.893, held out 2.919
TRIAL_STEPS = 30  # of which the first half is warm-up


def new_trainer(
    start: Path, config: TrainingConfig, folder: Path, device: torch.device, feed_forward: int
) -> Trainer:
    """Return a trainer that starts from a checkpoint, with at least ``feed_forward`` features."""
    network = read_config(start)
    network = replace(network, d_ff=max(network.d_ff, feed_forward))
    trainer = Trainer(network, config, folder, device)
    trainer.start_from(start)
    return trainer


def seconds_per_step(trainer: Trainer, data: Dataset, trial_steps: int) -> float:
    """Measure the time of a training step; this changes the trainer's weights."""
    images = torch.from_numpy(data.images.reshape(len(data), -1, data.images.shape[-1]))
    labels = None if data.labels is None else torch.from_numpy(data.labels)
    measured = (trial_steps + 1) // 2
    for i in range(trial_steps):
        if i == trial_steps - measured:
            began = time.perf_counter()
        trainer.train_state.take_step(images, labels)
    return (time.perf_counter() - began) / measured


def train_until(
    end: float, start: Path, data: Dataset, config: TrainingConfig, folder: Path,
    device: torch.device, reserve: float, held: int,
    feed_forward: int = 0, trial_steps: int = TRIAL_STEPS,
) -> Trainer:  # fmt: skip
    """Train from a checkpoint until a point in time and save the weights.

    Args:
        end: Time of ``time.monotonic()`` by which the weights must be saved.
        start: Checkpoint to start from.
        data: Images; ``held`` of them are for validation.
        config: Training settings; ``steps`` and ``evaluate_every`` are chosen here.
        folder: Folder of the run.
        device: Device to train on.
        reserve: Seconds for validation, saving and other delays.
        held: Images for validation.
        feed_forward: Features of the feed-forward networks, if the checkpoint has fewer.
        trial_steps: Steps whose time is measured; their results are not used.

    Raises:
        ValueError: There is no time for a step.
    """
    training, validation = split_validation(data, held, 0)
    trial = new_trainer(
        start, config, folder.with_name(f"{folder.name}-trial"), device, feed_forward
    )
    seconds = seconds_per_step(trial, training, trial_steps)
    del trial  # frees the device's memory
    steps = int((end - time.monotonic() - reserve) / seconds)
    print(f"{1e3 * seconds:.1f} ms per step of {config.batch} images, {steps} steps", flush=True)
    every = max(steps // VALIDATIONS, 1)
    config = replace(config, steps=steps, evaluate_every=every)
    trainer = new_trainer(start, config, folder, device, feed_forward)
    trainer.train(training, validation, StopSignal(), quiet=True)
    return trainer


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and print the time of a step, the number of steps and all validations."""
    parser = argparse.ArgumentParser(prog="train_cifar10", description=__doc__)
    parser.add_argument("seconds", type=float, help="time for everything, in seconds")
    parser.add_argument("folder", type=Path, help="folder of the run, for its weights and log")
    parser.add_argument("parts", type=Path, nargs="+", help="files of image_parts.py, in order")
    parser.add_argument("--from", dest="start", type=Path, help="weights to start from",
                        default=SHIPPED_WEIGHTS / "cifar10.safetensors")  # fmt: skip
    parser.add_argument("--feed-forward", type=int, default=FEED_FORWARD,
                        help="least features of the feed-forward networks")  # fmt: skip
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=CONFIG.batch, help="images per step")
    parser.add_argument("--held-out", type=int, default=HELD_OUT, help="images for validation")
    parser.add_argument("--reserve", type=float, default=40, help="seconds of it without training")
    options = parser.parse_args(arguments)
    end = time.monotonic() + options.seconds
    trainer = train_until(
        end, options.start, read_parts(options.parts), replace(CONFIG, batch=options.batch),
        options.folder, torch.device(options.device), options.reserve, options.held_out,
        options.feed_forward,
    )  # fmt: skip
    for one in trainer.validation:
        print(f"step {one['step']}: {one['bits_per_dim']:.4f} bits/dim")
    print(f"{trainer.weights}, trained on {trainer.data}")


if __name__ == "__main__":
    main()
