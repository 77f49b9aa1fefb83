"""Tests of random shifts and mirroring."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from scanline.model.training.augmentation import augment, mirror_mask, random_shifts, shift_images
from scanline.model.training.batches import batch_indices
from scanline.model.training.config import learning_rate_factor
from scanline.model.training.stop_signal import StopSignal
from scanline.model.training.trainer import Trainer
from tests.model.training.fixtures import (
    CONFIG,
    CPU,
    MODEL,
    dataset,
)


def test_fewer_images_are_shifted_at_lower_learning_rates() -> None:
    config = replace(CONFIG, steps=100, batch=400, warmup=0, decay=0.5, shift=2)
    steps = {step: random_shifts(step, config) for step in (0, 1, 49, 75, 99)}
    for step, shifts in steps.items():
        assert shifts.shape == (400, 2)
        assert {*shifts.flat} == {-2, -1, 0, 1, 2}, step
        still = float((shifts == 0).all(1).mean())
        share = learning_rate_factor(step, config)
        assert still == pytest.approx(1 - share + share / 25, abs=0.08)
    assert not np.array_equal(steps[0], steps[1])
    assert np.array_equal(steps[0], random_shifts(0, config))
    assert not np.array_equal(steps[0], random_shifts(0, replace(config, seed=4)))
    assert not random_shifts(0, replace(config, shift=0)).any()


def test_shift_repeats_edge_pixels() -> None:
    """Compare with numpy's edge padding; all channels differ."""
    images = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3), np.uint8)
    shifts = np.array([[0, 0], [2, -1], [-1, 2], [-9, 9]])
    canvas = torch.from_numpy(images.reshape(4, 30, 3))
    result = shift_images(canvas, torch.from_numpy(shifts), 5, 6)
    for image, (down, right), seen in zip(images, shifts, result, strict=True):
        padded = np.pad(image, ((9, 9), (9, 9), (0, 0)), mode="edge")
        expected = padded[9 - down :, 9 - right :][:5, :6]
        np.testing.assert_array_equal(seen.numpy().reshape(5, 6, 3), expected)


def test_half_of_the_images_are_mirrored() -> None:
    """Mirroring follows the shift and selects other images in each step."""
    images = np.random.default_rng(0).integers(0, 256, (400, 5, 6, 3), np.uint8)
    canvas = torch.from_numpy(images.reshape(400, 30, 3))
    config = replace(CONFIG, batch=400, mirror=True)
    seen = augment(canvas, 7, config, slice(None), 5, 6).numpy().reshape(400, 5, 6, 3)
    mask = mirror_mask(7, config)
    np.testing.assert_array_equal(seen[mask], images[mask][:, :, ::-1])
    np.testing.assert_array_equal(seen[~mask], images[~mask])
    assert mask.mean() == pytest.approx(0.5, abs=0.1)
    assert not np.array_equal(mask, mirror_mask(8, config))
    assert not np.array_equal(mask, mirror_mask(7, replace(config, seed=4)))
    half = augment(canvas[200:], 7, config, slice(200, 400), 5, 6)
    np.testing.assert_array_equal(half.numpy().reshape(200, 5, 6, 3), seen[200:])
    assert augment(canvas, 7, replace(config, mirror=False), slice(None), 5, 6) is canvas
    both = replace(config, shift=1, warmup=0, decay=0.0)
    shifts = torch.from_numpy(random_shifts(7, both))
    expected = shift_images(canvas, shifts, 5, 6).numpy().reshape(400, 5, 6, 3)
    expected[mask] = expected[mask][:, :, ::-1]
    twice = augment(canvas, 7, both, slice(None), 5, 6)
    np.testing.assert_array_equal(twice.numpy().reshape(400, 5, 6, 3), expected)


def test_training_uses_shifted_images(tmp_path: Path) -> None:
    """Both the network's input and the target are shifted; the data set is not modified."""
    data = dataset(40)
    inputs: list[torch.Tensor] = []
    trainer = Trainer(MODEL, replace(CONFIG, batch=40, warmup=0, decay=0.0, shift=1), tmp_path, CPU)
    model = trainer.train_state.model
    bits_from = model.bits_from

    def measured(parameters: torch.Tensor, canvas: torch.Tensor) -> torch.Tensor:
        assert torch.equal(canvas, inputs[-1])
        return bits_from(parameters, canvas)

    model.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    model.bits_from = measured  # type: ignore[method-assign]
    before = data.images.copy()
    trainer.train(data, None, StopSignal(), quiet=True)
    np.testing.assert_array_equal(data.images, before)
    flat = torch.from_numpy(before.reshape(40, -1, 1))
    for step, canvas in enumerate(inputs):
        indices = batch_indices(step, 40, trainer.config)
        shifts = torch.from_numpy(random_shifts(step, trainer.config))
        assert torch.equal(canvas, shift_images(flat[indices], shifts, MODEL.height, MODEL.width))
        assert not torch.equal(canvas, flat[indices])
