"""Tests of the training loop: determinism, resumption, starting from a checkpoint, and errors."""

from __future__ import annotations

import math
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scanline.model.checkpoint import (
    CheckpointError,
    SamplingDefaults,
    load_by_name,
    load_checkpoint,
)
from scanline.model.data.dataset import Dataset
from scanline.model.evaluation.likelihood import evaluate
from scanline.model.evaluation.records import record_defaults
from scanline.model.training import trainer as trainer_module
from scanline.model.training.config import TrainingConfig
from scanline.model.training.optimizers import step_optimizers
from scanline.model.training.resume import read_saved_run
from scanline.model.training.stop_signal import StopSignal
from scanline.model.training.train_state import TrainState
from scanline.model.training.trainer import Trainer
from tests.model.training.fixtures import (
    CLASSES,
    CONFIG,
    CPU,
    MODEL,
    assert_same_bits,
    dataset,
    log_of,
    run,
    state,
    weights_of,
)


def test_loss_decreases(tmp_path: Path) -> None:
    run(tmp_path, replace(CONFIG, steps=60))
    losses = [line["bits_per_dim"] for line in log_of(tmp_path)]
    assert len(losses) == 60
    assert losses[0] == pytest.approx(8, abs=1)  # a uniform distribution over 256 values
    assert sum(losses[-5:]) / 5 < 6


def test_recent_bits_are_a_mean_of_this_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def recent(config: TrainingConfig, resume: bool) -> tuple[float, list[float]]:
        trainer = run(tmp_path, config, resume=resume)
        return trainer.recent_bits, [line["bits_per_dim"] for line in log_of(tmp_path)]

    bits, losses = recent(replace(CONFIG, steps=40), resume=False)
    assert bits == pytest.approx(sum(losses[-8:]) / 8)  # a fifth of the steps
    assert math.isnan(recent(replace(CONFIG, steps=40), resume=True)[0])  # no step was taken
    bits, losses = recent(replace(CONFIG, steps=43), resume=True)
    assert bits == pytest.approx(sum(losses[-3:]) / 3)
    monkeypatch.setattr(trainer_module, "_RECENT_STEPS", 5)
    bits, losses = recent(replace(CONFIG, steps=60), resume=True)
    assert bits == pytest.approx(sum(losses[-5:]) / 5)


def test_ema_is_saved_and_follows_the_weights(tmp_path: Path) -> None:
    trainer = run(tmp_path, replace(CONFIG, steps=60))
    served = load_checkpoint(weights_of(tmp_path))
    average, model = trainer.train_state.ema, trainer.train_state.model
    assert_same_bits(dict(served.model.state_dict()), dict(average.state_dict()))
    data = dataset(50, seed=1)
    averaged, last = evaluate(average, data), evaluate(model, data)
    fresh = evaluate(TrainState(MODEL, CONFIG, CPU).model, data)
    assert averaged.bits_per_dim < fresh.bits_per_dim - 1
    assert abs(averaged.bits_per_dim - last.bits_per_dim) < 1
    assert not torch.equal(average.head.predictor.weight, model.head.predictor.weight)
    assert served.facts["steps"] == 60
    assert served.facts["images_seen"] == 240
    assert served.facts["training"] == asdict(replace(CONFIG, steps=60))


def test_run_is_deterministic_by_seed(tmp_path: Path) -> None:
    first, second = run(tmp_path / "a"), run(tmp_path / "b")
    assert_same_bits(state(first), state(second))
    other = run(tmp_path / "c", replace(CONFIG, seed=4))
    one, another = (trainer.train_state.model.head.predictor.bias for trainer in (first, other))
    assert not torch.equal(one, another)


def test_failing_after_validation_does_not_end_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaking(model: Any, folder: Path) -> None:
        raise IsADirectoryError(21, "Is a directory", str(folder / "curve.png"))

    trainer = Trainer(MODEL, replace(CONFIG, evaluate_every=2), tmp_path, CPU)
    trainer.train(dataset(), dataset(4), StopSignal(), quiet=True, after_validation=breaking)
    assert trainer.step == CONFIG.steps
    assert "step 2: no sample images ([Errno 21] Is a directory" in capsys.readouterr().out


def test_interrupted_validation_loses_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("scanline.model.training.trainer.evaluate", killed)
    trainer = Trainer(MODEL, replace(CONFIG, evaluate_every=3), tmp_path, CPU)
    with pytest.raises(KeyboardInterrupt):
        trainer.train(dataset(), dataset(4), StopSignal(), quiet=True)
    monkeypatch.undo()
    again = Trainer(MODEL, replace(CONFIG, evaluate_every=3), tmp_path, CPU)
    again.resume()
    assert again.step == 3
    drawn: list[int] = []
    again.train(
        dataset(), dataset(4), StopSignal(), quiet=True,
        after_validation=lambda *_: drawn.append(again.step),
    )  # fmt: skip
    assert [one["step"] for one in again.validation] == [3, 6]
    assert drawn == [3, 6]
    assert [line["step"] for line in log_of(tmp_path) if "validation" in line] == [3, 6]


def test_interrupted_last_validation_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("scanline.model.training.trainer.evaluate", killed)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, validation=dataset(4))
    monkeypatch.undo()
    for _ in range(2):
        run(tmp_path, resume=True, validation=dataset(4))
        facts = load_checkpoint(weights_of(tmp_path)).facts
        assert [one["step"] for one in facts["validation"]] == [6]


@pytest.mark.parametrize("how", [shutil.copytree, shutil.move])
def test_copied_or_renamed_run_keeps_its_weights_file(tmp_path: Path, how: Any) -> None:
    """A second file would leave the first one outdated, and the server could choose it."""
    level = replace(CONFIG, decay=0.0)
    run(tmp_path / "a", replace(level, steps=2))
    how(tmp_path / "a", tmp_path / "z")
    for steps in (4, 6):
        resumed = run(tmp_path / "z", replace(level, steps=steps), resume=True)
        assert [path.name for path in (tmp_path / "z").glob("*.safetensors")] == ["a.safetensors"]
        assert load_by_name(tmp_path / "z").facts["steps"] == steps
        assert resumed.weights == tmp_path / "z" / "a.safetensors"


def test_renamed_weights_of_renamed_run_are_used(tmp_path: Path) -> None:
    level = replace(CONFIG, decay=0.0)
    run(tmp_path / "a", replace(level, steps=2))
    (tmp_path / "a").rename(tmp_path / "z")
    (tmp_path / "z" / "a.safetensors").rename(weights_of(tmp_path / "z"))
    run(tmp_path / "z", level, resume=True)
    assert [*(tmp_path / "z").glob("*.safetensors")] == [weights_of(tmp_path / "z")]
    assert load_by_name(tmp_path / "z").facts["steps"] == 6


def test_run_saved_without_name_of_weights_uses_default_name(tmp_path: Path) -> None:
    run(tmp_path, replace(CONFIG, steps=3, decay=0.0))
    saved = torch.load(tmp_path / "training.pt", weights_only=True)
    assert saved.pop("weights") == weights_of(tmp_path).name
    torch.save(saved, tmp_path / "training.pt")
    assert run(tmp_path, replace(CONFIG, decay=0.0), resume=True).weights == weights_of(tmp_path)


def test_run_can_be_extended(tmp_path: Path) -> None:
    """Before the decay, an extended run equals a run that was this long from the start."""
    level = replace(CONFIG, decay=0.0)
    run(tmp_path / "parts", replace(level, steps=3))
    longer = run(tmp_path / "parts", replace(level, steps=6, checkpoint_every=2), resume=True)
    assert longer.step == 6
    assert_same_bits(state(longer), state(run(tmp_path / "whole", level)))


def test_run_can_start_from_a_checkpoint(tmp_path: Path) -> None:
    before = run(tmp_path / "before", replace(CONFIG, steps=40))
    path = weights_of(tmp_path / "before")
    trainer = Trainer(MODEL, CONFIG, tmp_path / "after", CPU)
    trainer.start_from(path)
    assert_same_bits(trainer.train_state.model.state_dict(), before.train_state.ema.state_dict())
    assert_same_bits(trainer.train_state.ema.state_dict(), before.train_state.ema.state_dict())
    trainer.train(dataset(), dataset(3, seed=1), StopSignal(), quiet=True)
    assert (
        log_of(tmp_path / "after")[0]["bits_per_dim"]
        < log_of(tmp_path / "before")[20]["bits_per_dim"]
    )
    runs = [{"trained_on": before.data, "held_out": 0}]
    origin = {"name": "before", "images_seen": 160, "runs": runs}
    assert load_checkpoint(weights_of(tmp_path / "after")).facts["started_from"] == origin
    assert run(tmp_path / "after", resume=True).origin == origin
    third = Trainer(MODEL, CONFIG, tmp_path / "third", CPU)
    third.start_from(weights_of(tmp_path / "after"))
    seen = 160 + CONFIG.steps * CONFIG.batch
    runs.insert(0, {"trained_on": before.data, "held_out": 3})
    assert third.origin == {"name": "after", "images_seen": seen, "runs": runs}
    with pytest.raises(CheckpointError, match=r"another network \(d_model\); start from the same"):
        Trainer(replace(MODEL, d_model=32), CONFIG, tmp_path / "other", CPU).start_from(path)


def test_extending_after_decay_logs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(tmp_path)
    run(tmp_path, resume=True)
    assert "learning rate" not in caplog.text
    run(tmp_path, replace(CONFIG, steps=60), resume=True)
    assert "the learning rate had fallen to 0 % and continues at" in caplog.text


def test_shift_beyond_image_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="shift must be less than the image's 4 pixels a side; got 4"
    ):
        run(tmp_path, replace(CONFIG, shift=4))


def test_resumed_run_keeps_time_and_validations(tmp_path: Path) -> None:
    config, held_out = replace(CONFIG, evaluate_every=2, decay=0.0), dataset(3, seed=5)
    run(tmp_path, replace(config, steps=4), validation=held_out)
    path = tmp_path / "training.pt"
    torch.save(torch.load(path, weights_only=True) | {"seconds": 1000.0}, path)
    run(tmp_path, config, resume=True, validation=held_out)
    facts = load_checkpoint(weights_of(tmp_path)).facts
    assert [one["step"] for one in facts["validation"]] == [2, 4, 6]
    assert facts["training_seconds"] >= 1000


def test_sampling_defaults_survive_training(tmp_path: Path) -> None:
    """Defaults recorded between two parts of a run, and those of the checkpoint it starts from."""
    first, defaults = tmp_path / "first", SamplingDefaults(guidance=3.0, top_p=0.9)
    run(first, replace(CONFIG, steps=4, decay=0.0))
    assert "defaults" not in load_checkpoint(weights_of(first)).facts
    record_defaults(load_checkpoint(weights_of(first)), first, defaults)
    run(first, replace(CONFIG, decay=0.0), resume=True)
    assert load_checkpoint(weights_of(first)).defaults == defaults
    other = Trainer(MODEL, CONFIG, tmp_path / "other", CPU)
    other.start_from(weights_of(first))
    for _ in range(2):
        other.save()
        assert load_checkpoint(other.weights).defaults == defaults
    other.weights.unlink()
    other = Trainer(MODEL, CONFIG, tmp_path / "other", CPU)
    other.resume()
    other.save()
    assert load_checkpoint(other.weights).defaults == defaults


def test_number_of_held_out_images_is_saved(tmp_path: Path) -> None:
    run(tmp_path, validation=dataset(9, seed=5))
    assert read_saved_run(tmp_path).held_out == 9


def poison(train_state: TrainState, what: str) -> None:
    """Make weights, or only gradients, non-finite after the third step."""
    right, bias = train_state.take_step, train_state.model.head.predictor.bias

    def take_step(images: torch.Tensor, labels: torch.Tensor | None) -> float:
        if train_state.step == 3 and what == "weights":
            with torch.no_grad():
                bias.fill_(torch.nan)
        elif train_state.step == 3:
            bias.register_hook(lambda grad: grad * torch.inf)  # type: ignore[no-untyped-call]
        return right(images, labels)

    train_state.take_step = take_step  # type: ignore[method-assign]


@pytest.mark.parametrize("what", ["weights", "gradient"])
def test_divergence_ends_the_run_and_keeps_last_checkpoint(tmp_path: Path, what: str) -> None:
    config = replace(CONFIG, checkpoint_every=2, steps=5, decay=0.0)
    trainer = Trainer(MODEL, config, tmp_path, CPU)
    poison(trainer.train_state, what)
    with pytest.raises(
        FloatingPointError, match=r"diverged at step 3: .*; train again in another folder"
    ):
        trainer.train(dataset(), None, StopSignal(), quiet=True)
    for parameter in load_checkpoint(weights_of(tmp_path)).model.parameters():
        assert parameter.isfinite().all()
    assert_same_bits(
        state(run(tmp_path, config, resume=True)), state(run(tmp_path / "healthy", config))
    )


def test_non_finite_weights_are_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step before a checkpoint breaks them, and no loss has been computed since."""
    config = replace(CONFIG, checkpoint_every=2, steps=5, decay=0.0)
    trainer = Trainer(MODEL, config, tmp_path, CPU)

    def step(optimizers: list[torch.optim.Optimizer], factor: float) -> None:
        step_optimizers(optimizers, factor)
        if trainer.step == 3:
            trainer.train_state.model.head.predictor.bias.data.fill_(torch.nan)

    monkeypatch.setattr("scanline.model.training.train_state.step_optimizers", step)
    with pytest.raises(FloatingPointError, match="not finite after step 4 and were not saved"):
        trainer.train(dataset(), None, StopSignal(), quiet=True)
    monkeypatch.undo()
    assert load_checkpoint(weights_of(tmp_path)).facts["steps"] == 2
    assert run(tmp_path, config, resume=True).step == 5


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Dataset("x", np.zeros((4, 4, 5, 1), np.uint8), None, CLASSES), "data has 4 × 5 × 1"),
        (Dataset("x", np.zeros((4, 5, 4, 3), np.uint8), None, CLASSES), "data has 5 × 4 × 3"),
        (Dataset("x", np.zeros((4, 5, 4, 1), np.uint8), None, ("a", "b")), "classes"),
        (Dataset("x", np.zeros((4, 5, 4, 1), np.uint8), None, ()), "classes"),
    ],
)
def test_data_that_do_not_fit_the_network_are_rejected(
    tmp_path: Path, data: Dataset, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Trainer(MODEL, CONFIG, tmp_path, CPU).train(data, None, StopSignal(), quiet=True)
