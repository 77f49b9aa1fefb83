"""Mean bits/dim over a data set, and its standard error."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from scanline.model.config import ModelConfig
from scanline.model.data.dataset import Dataset
from scanline.model.evaluation.likelihood import evaluate
from scanline.model.training.stop_signal import StopSignal
from scanline.model.training.trainer import Trainer
from tests.conftest import random_network, tiny_config
from tests.model.training.fixtures import CONFIG, CPU, MODEL, dataset, log_of


@pytest.mark.parametrize("batch", [1, 4, 64])
@pytest.mark.parametrize("with_label", [False, True])
def test_mean_and_standard_error(with_label: bool, batch: int) -> None:
    network, data = random_network(MODEL, dtype=torch.float32), dataset(10)
    assert data.labels is not None
    each = []
    for i in range(10):
        canvas = torch.from_numpy(data.images[i : i + 1].reshape(1, -1, 1).copy())
        label = torch.tensor([int(data.labels[i])]) if with_label else None
        with torch.no_grad():
            each.append(float(network.bits(canvas, label).double().sum()) / 20)
    mean = sum(each) / 10
    error = math.sqrt(sum((x - mean) ** 2 for x in each) / 9 / 10)
    done: list[int] = []
    result = evaluate(network, data, with_label=with_label, batch=batch, progress=done.append)
    assert result.bits_per_dim == pytest.approx(mean, rel=1e-5)
    assert result.standard_error == pytest.approx(error, rel=1e-4)
    assert (result.images, sum(done)) == (10, 10)
    assert str(result).startswith(f"{mean:.2f}"[:3])


def test_given_first_value_is_not_counted() -> None:
    config = tiny_config(input="previous", start="given", head="logistic_mixture")
    network = random_network(config, dtype=torch.float32)
    data = replace(dataset(3), classes=(), labels=None)
    with torch.no_grad():
        bits = network.bits(torch.from_numpy(data.images.reshape(3, -1, 1)))
    assert evaluate(network, data).bits_per_dim == pytest.approx(
        float(bits.sum()) / 3 / 19, rel=1e-5
    )


def test_one_image_has_no_standard_error() -> None:
    result = evaluate(random_network(MODEL, dtype=torch.float32), dataset(1))
    assert (result.standard_error, result.finite_error, result.images) == (np.inf, None, 1)
    assert str(result).endswith(" bits/dim, one image")
    assert "inf" not in str(result)


def test_mismatched_data_is_rejected() -> None:
    network = random_network(MODEL, dtype=torch.float32)
    wrong = Dataset("x", np.zeros((2, 4, 5, 1), np.uint8), None, ())
    with pytest.raises(ValueError, match="the model draws 5 × 4 × 1 images, the data has 4 × 5"):
        evaluate(network, wrong)
    with pytest.raises(ValueError, match="evaluate without labels"):
        evaluate(network, replace(dataset(2), labels=None), with_label=True)
    with pytest.raises(ValueError, match="evaluate without labels"):
        evaluate(network, replace(dataset(2), classes=("x", "y")), with_label=True)


def test_train_and_evaluate_on_real_images(tmp_path: Path, data_dir: Path) -> None:
    from scanline.model.data.published_sets import load_dataset

    data = load_dataset("mnist", "test", data_dir).take(slice(0, 24))
    config = ModelConfig(
        height=28, width=28, classes=data.classes, n_layers=1, n_heads=2, d_model=32, d_ff=32
    )
    trainer = Trainer(config, replace(CONFIG, steps=8, batch=8), tmp_path, CPU)
    trainer.train(data, None, StopSignal(), quiet=True)
    losses = [line["bits_per_dim"] for line in log_of(tmp_path)]
    assert losses[-1] < losses[0] - 0.5
    assert 0 < evaluate(trainer.train_state.model, data).bits_per_dim < 8
