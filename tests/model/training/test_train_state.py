"""What a step takes: its images, its rates, its labels, and its line in the log."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from scanline.model.checkpoint import load_checkpoint
from scanline.model.config import NO_LABEL
from scanline.model.evaluation.likelihood import evaluate
from scanline.model.network import LinearTransformer
from scanline.model.training.augmentation import augment, mirror_mask, random_shifts, shift_images
from scanline.model.training.config import batch_indices, learning_rate_factor
from scanline.model.training.muon import Muon, orthogonalise
from scanline.model.training.optimizers import make_optimizers
from scanline.model.training.resume import dataset_fingerprint
from scanline.model.training.stop_signal import StopSignal
from scanline.model.training.train_state import TrainState
from scanline.model.training.trainer import Trainer
from tests.conftest import random_canvas
from tests.model.training.fixtures import CONFIG, CPU, MODEL, dataset, log_of, run, weights_of


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
    distances: dict[float, dict[str, float]] = {}
    for rate in (0.0, 1e-2):
        config = replace(CONFIG, steps=3, edge_rate=rate)
        trainer = Trainer(replace(MODEL, encoding="linear"), config, tmp_path / str(rate), CPU)
        before = {
            name: p.detach().clone() for name, p in trainer.train_state.model.named_parameters()
        }
        trainer.train(dataset(), None, StopSignal(), quiet=True)
        distances[rate] = {
            name: float((p.detach() - before[name]).abs().max())
            for name, p in trainer.train_state.model.named_parameters()
        }
        again = Trainer(replace(MODEL, encoding="linear"), config, tmp_path / str(rate), CPU)
        again.resume()
        groups = [group["rate"] for o in again.train_state.optimizers for group in o.param_groups]
        assert sorted(groups) == sorted([config.muon_rate, config.learning_rate, rate])
    assert edges < distances[0.0].keys()
    assert {name for name, far in distances[0.0].items() if far == 0} == edges
    assert all(distances[1e-2][name] > 0 for name in edges)


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
        forward = trainer.train_state._forward_backward._forward

        def watched(canvas: torch.Tensor, label: torch.Tensor, forward: Any = forward) -> Any:
            given.append(label)
            return forward(canvas, label)

        trainer.train_state._forward_backward._forward = watched
        trainer.train(data, None, StopSignal(), quiet=True)
        labels = torch.stack(given)
        dropped = labels == NO_LABEL
        assert float(dropped.double().mean()) == pytest.approx(share, abs=0.04)
        assert data.labels is not None
        for step in range(5):
            own = torch.from_numpy(data.labels[batch_indices(step, 400, config)])
            assert torch.equal(labels[step][~dropped[step]], own[~dropped[step]])
        if share == 0.2:
            assert len({row.numpy().tobytes() for row in dropped}) == 5  # drawn anew each step


def test_images_are_moved_less_and_less_as_the_rate_falls() -> None:
    config = replace(CONFIG, steps=100, batch=400, warmup=0, decay=0.5, shift=2)
    steps = {step: random_shifts(step, config) for step in (0, 1, 49, 75, 99)}
    for step, moves in steps.items():
        assert moves.shape == (400, 2)
        assert {*moves.flat} == {-2, -1, 0, 1, 2}, step
        still = float((moves == 0).all(1).mean())
        share = learning_rate_factor(step, config)
        assert still == pytest.approx(1 - share + share / 25, abs=0.08)
    assert not np.array_equal(steps[0], steps[1])
    assert np.array_equal(steps[0], random_shifts(0, config))
    assert not np.array_equal(steps[0], random_shifts(0, replace(config, seed=4)))
    assert not random_shifts(0, replace(config, shift=0)).any()


def test_a_moved_image_is_itself_elsewhere_and_repeats_its_edge() -> None:
    """Against numpy's padding and slicing, each channel with its own intensities."""
    pictures = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3), np.uint8)
    moves = np.array([[0, 0], [2, -1], [-1, 2], [-9, 9]])
    canvas = torch.from_numpy(pictures.reshape(4, 30, 3))
    result = shift_images(canvas, torch.from_numpy(moves), 5, 6)
    for picture, (down, right), seen in zip(pictures, moves, result, strict=True):
        padded = np.pad(picture, ((9, 9), (9, 9), (0, 0)), mode="edge")
        expected = padded[9 - down :, 9 - right :][:5, :6]
        np.testing.assert_array_equal(seen.numpy().reshape(5, 6, 3), expected)


def test_every_second_image_is_seen_in_a_mirror() -> None:
    """After it was moved, each channel with its own intensities, and another half of each step."""
    pictures = np.random.default_rng(0).integers(0, 256, (400, 5, 6, 3), np.uint8)
    canvas = torch.from_numpy(pictures.reshape(400, 30, 3))
    config = replace(CONFIG, batch=400, mirror=True)
    seen = augment(canvas, 7, config, slice(None), 5, 6).numpy().reshape(400, 5, 6, 3)
    chosen = mirror_mask(7, config)
    np.testing.assert_array_equal(seen[chosen], pictures[chosen][:, :, ::-1])
    np.testing.assert_array_equal(seen[~chosen], pictures[~chosen])
    assert chosen.mean() == pytest.approx(0.5, abs=0.1)
    assert not np.array_equal(chosen, mirror_mask(8, config))
    assert not np.array_equal(chosen, mirror_mask(7, replace(config, seed=4)))
    half = augment(canvas[200:], 7, config, slice(200, 400), 5, 6)
    np.testing.assert_array_equal(half.numpy().reshape(200, 5, 6, 3), seen[200:])
    assert augment(canvas, 7, replace(config, mirror=False), slice(None), 5, 6) is canvas
    both = replace(config, shift=1, warmup=0, decay=0.0)
    moves = torch.from_numpy(random_shifts(7, both))
    expected = shift_images(canvas, moves, 5, 6).numpy().reshape(400, 5, 6, 3)
    expected[chosen] = expected[chosen][:, :, ::-1]
    twice = augment(canvas, 7, both, slice(None), 5, 6)
    np.testing.assert_array_equal(twice.numpy().reshape(400, 5, 6, 3), expected)


def test_what_is_learnt_from_is_what_was_moved(tmp_path: Path) -> None:
    """The network's input and what its answer is measured by; the data stay as they were."""
    data = dataset(40)
    given: list[torch.Tensor] = []
    trainer = Trainer(MODEL, replace(CONFIG, batch=40, warmup=0, decay=0.0, shift=1), tmp_path, CPU)
    passes, model = trainer.train_state._forward_backward, trainer.train_state.model
    forward, bits_from = passes._forward, model.bits_from

    def watched(canvas: torch.Tensor, label: torch.Tensor) -> Any:
        given.append(canvas)
        return forward(canvas, label)

    def measured(parameters: torch.Tensor, canvas: torch.Tensor) -> torch.Tensor:
        assert torch.equal(canvas, given[-1])
        return bits_from(parameters, canvas)

    passes._forward, model.bits_from = watched, measured  # type: ignore[method-assign]
    before = data.images.copy()
    trainer.train(data, None, StopSignal(), quiet=True)
    np.testing.assert_array_equal(data.images, before)
    flat = torch.from_numpy(before.reshape(40, -1, 1))
    for step, canvas in enumerate(given):
        indices = batch_indices(step, 40, trainer.config)
        moves = torch.from_numpy(random_shifts(step, trainer.config))
        assert torch.equal(canvas, shift_images(flat[indices], moves, MODEL.height, MODEL.width))
        assert not torch.equal(canvas, flat[indices])


def test_the_log_has_a_line_a_step_and_the_validations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that is half a second later each time it is asked."""
    clock = SimpleNamespace(perf_counter=itertools.count(step=0.5).__next__)
    monkeypatch.setattr("scanline.model.training.trainer.time", clock)
    config = replace(CONFIG, evaluate_every=4)
    trainer = run(tmp_path, config, validation=dataset(9, seed=5))
    lines = log_of(tmp_path)
    training = [line for line in lines if "bits_per_dim" in line]
    assert [line["step"] for line in training] == [1, 2, 3, 4, 5, 6]
    assert [line["images_per_second"] for line in training] == [CONFIG.batch / 0.5] * 6
    assert [line["seconds"] for line in training] == [0.5, 1, 1.5, 2, 2.5, 3]
    validations = [line for line in lines if "validation" in line]
    assert [line["step"] for line in validations] == [4, 6]
    last = evaluate(trainer.train_state.ema, dataset(9, seed=5))
    assert validations[-1]["validation"] == pytest.approx(last.bits_per_dim, abs=1e-4)
    assert validations[-1]["error"] == pytest.approx(last.standard_error, abs=1e-4)
    facts = load_checkpoint(weights_of(tmp_path)).facts
    assert [entry["step"] for entry in facts["validation"]] == [4, 6]


def test_the_log_of_one_image_held_out_is_json_as_others_read_it(tmp_path: Path) -> None:
    run(tmp_path, validation=dataset(1, seed=5))
    assert "Infinity" not in (tmp_path / "log.jsonl").read_text()
    assert log_of(tmp_path)[-1]["error"] is None
    facts = load_checkpoint(weights_of(tmp_path)).facts
    assert facts["held_out"] == 1
    assert facts["trained_on"] == dataset_fingerprint(dataset())


@pytest.mark.parametrize("rank", [0, 1])
def test_each_of_two_processes_takes_its_half_of_a_step(rank: int) -> None:
    """Its images, moved as they would be alone, and their labels, dropped as they would be."""
    data = dataset(40)
    assert data.labels is not None
    images, labels = torch.from_numpy(data.images.reshape(40, -1, 1)), torch.from_numpy(data.labels)
    config = replace(CONFIG, batch=40, warmup=0, decay=0.0, shift=1, drop_label=0.5)
    given: list[tuple[torch.Tensor, torch.Tensor]] = []
    for world in (1, 2):
        train_state = TrainState(MODEL, config, CPU)
        train_state.world_size, train_state.rank = world, rank if world == 2 else 0
        forward = train_state._forward_backward._forward

        def watched(canvas: torch.Tensor, label: torch.Tensor, forward: Any = forward) -> Any:
            given.append((canvas, label))
            return forward(canvas, label)

        train_state._forward_backward._forward = watched
        train_state.take_step(images, labels)
    half = slice(20 * rank, 20 * (rank + 1))
    for whole, mine in zip(*given, strict=True):
        assert torch.equal(mine, whole[half])


def test_a_batch_made_ahead_is_of_the_images_given_or_is_made_again() -> None:
    data = dataset()
    assert data.labels is not None
    images, labels = torch.from_numpy(data.images.reshape(22, -1, 1)), torch.from_numpy(data.labels)
    train_state, other = (TrainState(MODEL, CONFIG, CPU) for _ in range(2))
    train_state.take_step(images, labels)
    for given in ((images, labels), (images.flip(0), labels), (images, 1 - labels)):
        for made, wanted in zip(
            train_state._batch(1, *given), other._batch(1, *given), strict=True
        ):
            assert torch.equal(made, wanted)  # type: ignore[arg-type]


def test_the_blocks_maps_alone_are_orthogonalised() -> None:
    """Not their convolutions, whose weights are matrices, too, but of taps."""
    model = LinearTransformer(replace(MODEL, short_conv="2x3"))
    muon, _ = make_optimizers(model, CONFIG, bf16=False)
    names = {parameter: name for name, parameter in model.named_parameters()}
    stepped = {names[p] for group in muon.param_groups for p in group["params"]}
    assert stepped == {
        f"blocks.0.{of}.weight"
        for of in (*(f"attention.{part}" for part in ("query", "key", "value", "out")),
                   "linear1", "linear2")
    }  # fmt: skip


@pytest.mark.parametrize(("rows", "columns"), [(3, 12), (12, 3)])
def test_steps_of_a_matrix_are_of_its_nesterov_momentum_orthogonalised(
    rows: int, columns: int
) -> None:
    """Longer by the root of its aspect ratio where it is tall; its decay is by the rate alone."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(rows, columns, generator=generator))
    muon = Muon([weight], lr=0.1, weight_decay=0.5, momentum=0.9)
    wanted, moment = weight.detach().clone(), torch.zeros(rows, columns)
    for _ in range(3):
        weight.grad = torch.randn(rows, columns, generator=generator)
        moment = 0.9 * moment + 0.1 * weight.grad
        step = orthogonalise((0.1 * weight.grad + 0.9 * moment)[None], torch.float32)[0]
        assert torch.linalg.svdvals(step).sub(1).abs().max() < 0.4
        wanted = wanted * (1 - 0.1 * 0.5) - 0.1 * max(1.0, rows / columns) ** 0.5 * step
        muon.step()
        torch.testing.assert_close(weight.detach(), wanted)


def test_a_large_gradient_is_cut_to_length_one(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_what_a_step_says_is_the_bits_of_a_dimension() -> None:
    """Of a channel of a pixel, as evaluation does."""
    config = replace(MODEL, channels=3, head="logistic_mixture", encoding="linear", classes=())
    train_state = TrainState(config, replace(CONFIG, batch=4), CPU)
    canvas = random_canvas(config, 4)
    indices = batch_indices(0, 4, train_state.config)
    with torch.no_grad():
        bits = float(train_state.model.bits(canvas[indices]).sum()) / 4 / config.dims
    assert train_state.take_step(canvas, None) == pytest.approx(bits, rel=1e-5)
