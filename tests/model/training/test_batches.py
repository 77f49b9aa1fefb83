"""Tests of batches: order of images, dropped labels and shares of processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from scanline.model.config import NO_LABEL
from scanline.model.training.batches import batch_indices
from scanline.model.training.stop_signal import StopSignal
from scanline.model.training.train_state import TrainState
from scanline.model.training.trainer import Trainer
from tests.model.training.fixtures import (
    CONFIG,
    CPU,
    MODEL,
    dataset,
)


def test_share_of_dropped_labels(tmp_path: Path) -> None:
    """Check the labels that the network receives; kept labels belong to their images."""
    data = dataset(400)
    given: list[torch.Tensor] = []

    for share in (0.0, 0.2, 1.0):
        given.clear()
        config = replace(CONFIG, steps=5, batch=400, drop_label=share)
        trainer = Trainer(MODEL, config, tmp_path / str(share), CPU)
        trainer.train_state.model.register_forward_pre_hook(
            lambda _, inputs: given.append(inputs[1])
        )
        trainer.train(data, None, StopSignal(), quiet=True)
        labels = torch.stack(given)
        dropped = labels == NO_LABEL
        assert float(dropped.double().mean()) == pytest.approx(share, abs=0.04)
        assert data.labels is not None
        for step in range(5):
            own = torch.from_numpy(data.labels[batch_indices(step, 400, config)])
            assert torch.equal(labels[step][~dropped[step]], own[~dropped[step]])
        if share == 0.2:
            assert len({row.numpy().tobytes() for row in dropped}) == 5  # different in each step


@pytest.mark.parametrize("rank", [0, 1])
def test_process_takes_its_share_of_the_batch(rank: int) -> None:
    """Shifts and dropped labels are those of the whole batch."""
    data = dataset(40)
    assert data.labels is not None
    images, labels = torch.from_numpy(data.images.reshape(40, -1, 1)), torch.from_numpy(data.labels)
    config = replace(CONFIG, batch=40, warmup=0, decay=0.0, shift=1, drop_label=0.5)
    given: list[tuple[torch.Tensor, torch.Tensor]] = []
    for world in (1, 2):
        train_state = TrainState(MODEL, config, CPU)
        train_state.world_size, train_state.rank = world, rank if world == 2 else 0
        train_state.model.register_forward_pre_hook(lambda _, inputs: given.append(inputs))
        train_state.take_step(images, labels)
    half = slice(20 * rank, 20 * (rank + 1))
    for whole, mine in zip(*given, strict=True):
        assert torch.equal(mine, whole[half])


@pytest.mark.parametrize(("count", "batch"), [(10, 3), (10, 10), (7, 16), (12, 4), (1, 2)])
def test_every_epoch_has_each_image_once(count: int, batch: int) -> None:
    config = replace(CONFIG, batch=batch)
    steps = -(-5 * count // batch)
    stream = np.concatenate([batch_indices(step, count, config) for step in range(steps)])
    epochs = stream[: 5 * count].reshape(5, count)
    assert (np.sort(epochs, 1) == np.arange(count)).all()
    if count >= 7:
        assert len({epoch.tobytes() for epoch in epochs}) == 5  # all in different orders


def test_order_of_images_depends_on_seed() -> None:
    orders = {batch_indices(0, 100, replace(CONFIG, seed=s, batch=100)).tobytes() for s in range(5)}
    assert len(orders) == 5
