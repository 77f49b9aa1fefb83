"""Tests of the training step: prefetching, gradient clipping and the reported loss."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from scanline.model.training.batches import batch_indices
from scanline.model.training.train_state import TrainState
from tests.conftest import random_canvas
from tests.model.training.fixtures import (
    CONFIG,
    CPU,
    MODEL,
    dataset,
)


def test_prefetched_batch_is_used_for_same_data_only() -> None:
    data = dataset()
    assert data.labels is not None
    images, labels = torch.from_numpy(data.images.reshape(22, -1, 1)), torch.from_numpy(data.labels)
    train_state, other = (TrainState(MODEL, CONFIG, CPU) for _ in range(2))
    train_state.take_step(images, labels)
    for given in ((images, labels), (images.flip(0), labels), (images, 1 - labels)):
        for actual, expected in zip(
            train_state._batch(1, *given), other._batch(1, *given), strict=True
        ):
            assert torch.equal(actual, expected)  # type: ignore[arg-type]


def test_gradient_is_clipped_to_norm_1(monkeypatch: pytest.MonkeyPatch) -> None:
    train_state, norms = TrainState(MODEL, CONFIG, CPU), list[float]()
    with torch.no_grad():
        train_state.model.head.predictor.weight.mul_(1000)

    def watch(*_: object) -> None:
        grads = [p.grad for p in train_state.model.parameters() if p.grad is not None]
        norms.append(float(torch.nn.utils.get_total_norm(grads)))

    monkeypatch.setattr("scanline.model.training.train_state.step_optimizers", watch)
    data = dataset()
    assert data.labels is not None
    images = torch.from_numpy(data.images.reshape(len(data), -1, 1))
    train_state.take_step(images, torch.from_numpy(data.labels))
    assert norms == [pytest.approx(1, rel=1e-3)]


def test_step_returns_bits_per_dim() -> None:
    """A dimension is a channel of a pixel, as in the evaluation."""
    config = replace(MODEL, channels=3, head="logistic_mixture", encoding="linear", classes=())
    train_state = TrainState(config, replace(CONFIG, batch=4), CPU)
    canvas = random_canvas(config, 4)
    indices = batch_indices(0, 4, train_state.config)
    with torch.no_grad():
        bits = float(train_state.model.bits(canvas[indices]).sum()) / 4 / config.dims
    assert train_state.take_step(canvas, None) == pytest.approx(bits, rel=1e-5)


def test_indivisible_batch_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("is_initialized", True), ("get_rank", 0), ("get_world_size", 3)):
        monkeypatch.setattr(torch.distributed, name, lambda value=value: value)
    with pytest.raises(ValueError, match="batch of 4 images cannot be divided among 3 processes"):
        TrainState(MODEL, replace(CONFIG, batch=4), CPU)
