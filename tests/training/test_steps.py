"""What a step takes: its images, its rates, its labels, and its line in the log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scanline.model.checkpoint import load_checkpoint
from scanline.model.config import NO_LABEL
from scanline.model.evaluation import evaluate
from scanline.model.recipe import batch_indices, learning_rate_factor
from scanline.model.stop import Stop
from scanline.model.training import Trainer
from tests.training.fixtures import CONFIG, CPU, MODEL, dataset, log_of, run, weights_of


@pytest.mark.parametrize(("count", "batch"), [(10, 3), (10, 10), (7, 16), (12, 4), (1, 2)])
def test_every_epoch_has_each_image_once(count: int, batch: int) -> None:
    config = replace(CONFIG, batch=batch)
    steps = -(-5 * count // batch)
    stream = np.concatenate([batch_indices(step, count, config) for step in range(steps)])
    epochs = stream[: 5 * count].reshape(5, count)
    assert (np.sort(epochs, 1) == np.arange(count)).all()
    if count >= 7:
        assert len({epoch.tobytes() for epoch in epochs}) == 5  # each in an order of its own


def test_another_seed_is_another_order() -> None:
    orders = {batch_indices(0, 100, replace(CONFIG, seed=s, batch=100)).tobytes() for s in range(5)}
    assert len(orders) == 5


def test_the_maps_at_the_edges_may_step_less(tmp_path: Path) -> None:
    edges = {"input.linear.weight", "head.predictor.weight"}
    moved: dict[float, dict[str, float]] = {}
    for rate in (0.0, 1e-2):
        config = replace(CONFIG, steps=3, edge_rate=rate)
        trainer = Trainer(replace(MODEL, encoding="linear"), config, tmp_path / str(rate), CPU)
        before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
        trainer.train(dataset(), None, Stop(), quiet=True)
        moved[rate] = {
            name: float((p.detach() - before[name]).abs().max())
            for name, p in trainer.model.named_parameters()
        }
        again = Trainer(replace(MODEL, encoding="linear"), config, tmp_path / str(rate), CPU)
        again.resume()
        groups = [group["rate"] for o in again.optimizers for group in o.param_groups]
        assert sorted(groups) == sorted([config.muon_rate, config.learning_rate, rate])
    assert edges < moved[0.0].keys()
    assert {name for name, far in moved[0.0].items() if far == 0} == edges
    assert all(moved[1e-2][name] > 0 for name in edges)


def test_the_learning_rate_rises_stays_and_falls_to_nothing() -> None:
    config = replace(CONFIG, steps=100, warmup=10, decay=0.4)
    factors = [learning_rate_factor(step, config) for step in range(101)]
    assert factors[:11] == pytest.approx([*(i / 10 for i in range(1, 11)), 1])
    assert factors[10:61] == [1.0] * 51
    assert factors[61:] == pytest.approx([1 - i / 40 for i in range(1, 41)])
    assert 0 < factors[99] < 0.03
    assert learning_rate_factor(0, replace(config, warmup=0)) == 1
    assert learning_rate_factor(99, replace(config, decay=0.0)) == 1
    longer = replace(config, steps=200)
    assert [learning_rate_factor(s, longer) for s in range(60)] == factors[:60]


def test_labels_are_dropped_at_the_rate_asked_for(tmp_path: Path) -> None:
    """Read from what the network is given; those kept are the images' own."""
    data = dataset(400)
    given: list[torch.Tensor] = []

    for share in (0.0, 0.2, 1.0):
        given.clear()
        config = replace(CONFIG, steps=5, batch=400, drop_label=share)
        trainer = Trainer(MODEL, config, tmp_path / str(share), CPU)
        forward = trainer._forward

        def watched(canvas: torch.Tensor, label: torch.Tensor, forward: Any = forward) -> Any:
            given.append(label)
            return forward(canvas, label)

        trainer._forward = watched
        trainer.train(data, None, Stop(), quiet=True)
        labels = torch.stack(given)
        dropped = labels == NO_LABEL
        assert float(dropped.double().mean()) == pytest.approx(share, abs=0.04)
        assert data.labels is not None
        for step in range(5):
            own = torch.from_numpy(data.labels[batch_indices(step, 400, config)])
            assert torch.equal(labels[step][~dropped[step]], own[~dropped[step]])
        if share == 0.2:
            assert len({row.numpy().tobytes() for row in dropped}) == 5  # drawn anew each step


def test_the_log_has_a_line_a_step_and_the_validations(tmp_path: Path) -> None:
    config = replace(CONFIG, evaluate_every=4)
    trainer = run(tmp_path, config, validation=dataset(9, seed=5))
    lines = log_of(tmp_path)
    training = [line for line in lines if "bits_per_dim" in line]
    assert [line["step"] for line in training] == [1, 2, 3, 4, 5, 6]
    assert all(line["images_per_second"] > 0 and line["seconds"] >= 0 for line in training)
    validations = [line for line in lines if "validation" in line]
    assert [line["step"] for line in validations] == [4, 6]
    last = evaluate(trainer.average, dataset(9, seed=5))
    assert validations[-1]["validation"] == pytest.approx(last.bits_per_dim, abs=1e-4)
    assert validations[-1]["error"] == pytest.approx(last.standard_error, abs=1e-4)
    facts = load_checkpoint(weights_of(tmp_path)).facts
    assert [entry["step"] for entry in facts["validation"]] == [4, 6]
