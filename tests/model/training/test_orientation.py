"""Tests of distribution augmentation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from scanline.model.checkpoint import load_checkpoint
from scanline.model.config import NO_LABEL
from scanline.model.data.dataset import Dataset
from scanline.model.training.batches import make_batch
from scanline.model.training.config import learning_rate_factor
from scanline.model.training.orientation import (
    ORIENTATIONS,
    OrientedTransformer,
    draw_orientations,
    orient,
)
from scanline.model.training.stop_signal import StopSignal
from scanline.model.training.train_state import TrainState
from scanline.model.training.trainer import Trainer
from tests.conftest import random_canvas
from tests.model.training.fixtures import CONFIG, CPU, MODEL, dataset

ORIENTED = replace(CONFIG, dist_aug=0.5, warmup=0)
SQUARE = replace(MODEL, height=MODEL.width)


def square_images() -> Dataset:
    data = dataset(40)
    return replace(data, images=data.images[:, : SQUARE.height].copy())


def test_share_of_turned_images_falls_with_the_learning_rate() -> None:
    config = replace(ORIENTED, steps=100, batch=4000, decay=0.5)
    for step in (0, 49, 75, 99):
        drawn = draw_orientations(step, config)
        share = 0.5 * learning_rate_factor(step, config)
        assert (drawn > 0).mean() == pytest.approx(share, abs=0.03)
        assert np.array_equal(drawn, draw_orientations(step, config))
    counts = np.bincount(draw_orientations(0, config), minlength=ORIENTATIONS)
    assert counts[1:] == pytest.approx(4000 / 14, rel=0.25)
    assert not np.array_equal(drawn, draw_orientations(0, replace(config, seed=4)))


def test_orientations_are_the_eight_symmetries_of_a_square() -> None:
    image = torch.arange(9, dtype=torch.uint8)
    canvas = image.expand(ORIENTATIONS, 9).unsqueeze(2)
    turned = orient(canvas, torch.arange(ORIENTATIONS), 3)[..., 0].view(-1, 3, 3).numpy()
    original = image.view(3, 3).numpy()
    assert len({one.tobytes() for one in turned}) == ORIENTATIONS
    np.testing.assert_array_equal(turned[0], original)
    np.testing.assert_array_equal(turned[1], np.rot90(original))
    np.testing.assert_array_equal(turned[4], original[:, ::-1])
    np.testing.assert_array_equal(turned[5], original.T)


def test_batch_has_turned_images_and_says_which() -> None:
    config = replace(ORIENTED, batch=40, drop_label=0.5)
    data = square_images()
    images = torch.from_numpy(data.images.reshape(40, -1, 1))
    assert data.labels is not None
    labels = torch.from_numpy(data.labels)
    plain, label = make_batch(0, images, labels, replace(config, dist_aug=0.0), slice(40), SQUARE)
    turned, columns = make_batch(0, images, labels, config, slice(40), SQUARE)
    assert label is not None
    assert columns is not None
    assert torch.equal(columns[:, 0], label)
    assert torch.equal(turned, orient(plain, columns[:, 1], SQUARE.height))
    assert not torch.equal(turned, plain)
    unlabelled = make_batch(0, images, None, config, slice(40), replace(SQUARE, classes=()))[1]
    assert unlabelled is not None
    assert unlabelled[:, 0].eq(NO_LABEL).all()
    assert torch.equal(unlabelled[:, 1], columns[:, 1])


def test_upright_images_have_no_vector() -> None:
    network = OrientedTransformer(SQUARE)
    with torch.no_grad():
        network.orientation.normal_()
    canvas, labels = random_canvas(network.config, ORIENTATIONS), torch.zeros(ORIENTATIONS).long()
    plain = TrainState(network.config, CONFIG, CPU).ema
    plain.load_state_dict({k: v for k, v in network.state_dict().items() if k != "orientation"})
    oriented = network.bits(canvas, torch.stack([labels, torch.arange(ORIENTATIONS)], 1))
    expected = plain.bits(canvas, labels)
    assert torch.equal(oriented[0], expected[0])
    assert (oriented[1:] != expected[1:]).any(1).all()


def test_training_learns_the_vectors_and_saves_a_plain_checkpoint(tmp_path: Path) -> None:
    data = square_images()
    config = replace(ORIENTED, steps=6, batch=40)
    trainer = Trainer(SQUARE, config, tmp_path / "whole", CPU)
    trainer.train(data, None, StopSignal(), quiet=True)
    trained = trainer.train_state.model.state_dict()
    assert trained["orientation"].abs().sum(1).gt(0).all()
    assert "orientation" not in load_checkpoint(trainer.weights).model.state_dict()

    halved = Trainer(SQUARE, config, tmp_path / "halved", CPU)
    images = torch.from_numpy(data.images.reshape(len(data), -1, 1))
    assert data.labels is not None
    for _ in range(3):
        halved.train_state.take_step(images, torch.from_numpy(data.labels))
    halved.save()
    resumed = Trainer(SQUARE, config, tmp_path / "halved", CPU)
    resumed.resume()
    resumed.train(data, None, StopSignal(), quiet=True)
    for name, tensor in resumed.train_state.model.state_dict().items():
        assert torch.equal(tensor, trained[name]), name

    further = Trainer(SQUARE, config, tmp_path / "further", CPU)
    further.start_from(trainer.weights)
    for one, other in zip(
        further.train_state.ema.parameters(), trainer.train_state.ema.parameters(), strict=True
    ):
        assert torch.equal(one, other)


def test_oblong_images_are_rejected(tmp_path: Path) -> None:
    assert MODEL.height != MODEL.width
    trainer = Trainer(MODEL, ORIENTED, tmp_path, CPU)
    with pytest.raises(ValueError, match="must be square; got 4 x 5 pixels"):
        trainer.train(dataset(), None, StopSignal(), quiet=True)
