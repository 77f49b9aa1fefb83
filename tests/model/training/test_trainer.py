"""The course of a run: deterministic in (seed, step), stopped and resumed, begun from another."""

from __future__ import annotations

import gc
import shutil
import signal
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from scanline.model.checkpoint import (
    CheckpointError,
    SamplingDefaults,
    load_by_name,
    load_checkpoint,
)
from scanline.model.evaluation.likelihood import evaluate
from scanline.model.evaluation.records import record_defaults
from scanline.model.training.host_tuning import frozen_gc
from scanline.model.training.learning_curve import read_curve
from scanline.model.training.resume import read_saved_run
from scanline.model.training.stop_signal import StopSignal
from scanline.model.training.train_state import TrainState
from scanline.model.training.trainer import Trainer
from tests.model.training.fixtures import (
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


def test_the_loss_goes_down(tmp_path: Path) -> None:
    run(tmp_path, replace(CONFIG, steps=60))
    losses = [line["bits_per_dim"] for line in log_of(tmp_path)]
    assert len(losses) == 60
    assert losses[0] == pytest.approx(8, abs=1)  # a fresh network knows nothing of 256 values
    assert sum(losses[-5:]) / 5 < 6


def test_the_average_is_what_is_served_and_follows_the_weights(tmp_path: Path) -> None:
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


def test_two_runs_of_one_seed_are_the_same_and_of_two_are_not(tmp_path: Path) -> None:
    first, second = run(tmp_path / "a"), run(tmp_path / "b")
    assert_same_bits(state(first), state(second))
    other = run(tmp_path / "c", replace(CONFIG, seed=4))
    one, another = (trainer.train_state.model.head.predictor.bias for trainer in (first, other))
    assert not torch.equal(one, another)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """Give a run from its first step to its last."""
    return run(tmp_path_factory.mktemp("runs") / "whole")


@pytest.mark.parametrize("cut", [1, pytest.param(3, marks=pytest.mark.broad), 5])
def test_stopped_and_resumed_equals_run_through(tmp_path: Path, cut: int, whole: Trainer) -> None:
    """Weights, average, both optimizers and the steps after: all to the bit."""
    stop = StopSignal()

    class Counting(Trainer):
        def _log(self, **fields: float | None) -> None:
            super()._log(**fields)
            stop.requested |= self.step == cut

    stopped = Counting(MODEL, CONFIG, tmp_path / "parts", CPU)
    stopped.train(dataset(), None, stop, quiet=True)
    assert stopped.step == cut
    torch.manual_seed(99)  # whatever ran between has no say
    resumed = run(tmp_path / "parts", CONFIG, resume=True)
    assert_same_bits(state(resumed), state(whole))
    assert_same_bits(
        dict(load_checkpoint(weights_of(tmp_path / "parts")).model.state_dict()),
        dict(load_checkpoint(whole.weights).model.state_dict()),
    )
    logs = [
        [line["bits_per_dim"] for line in log_of(folder)]
        for folder in (tmp_path / "parts", whole.folder)
    ]
    assert logs[0] == logs[1]


def test_pictures_that_cannot_be_drawn_end_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaking(model: Any, folder: Path) -> None:
        raise IsADirectoryError(21, "Is a directory", str(folder / "curve.png"))

    trainer = Trainer(MODEL, replace(CONFIG, evaluate_every=2), tmp_path, CPU)
    trainer.train(dataset(), dataset(4), StopSignal(), quiet=True, after_validation=breaking)
    assert trainer.step == CONFIG.steps
    assert "step 2: no sample images ([Errno 21] Is a directory" in capsys.readouterr().out


def test_a_validation_that_is_broken_off_loses_no_step(
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


def test_a_last_validation_that_is_broken_off_is_made_up_for(
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


def test_a_log_that_cannot_be_written_costs_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, opened = Trainer(MODEL, CONFIG, tmp_path / "full", CPU), Path.open

    def full(path: Path, mode: str = "r", *rest: Any, **more: Any) -> Any:
        if path.name == "log.jsonl" and mode == "a" and trainer.step == 3:
            raise OSError(28, "No space left on device")
        return opened(path, mode, *rest, **more)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(OSError, match=r"cannot write .*log\.jsonl \(No space left on device\)"):
        trainer.train(dataset(), None, StopSignal(), quiet=True)
    monkeypatch.undo()
    assert load_checkpoint(weights_of(tmp_path / "full")).facts["steps"] == 3
    resumed = run(tmp_path / "full", resume=True)
    assert_same_bits(state(resumed), state(run(tmp_path / "whole")))


def test_a_wish_to_stop_is_confirmed() -> None:
    said: list[str] = []
    with StopSignal(said.append).handling_signals() as stop:
        signal.raise_signal(signal.SIGTERM)
    assert stop.requested
    assert "interrupt again to quit unsaved" in said[0]


def test_a_run_of_before_an_option_goes_on_without_it(tmp_path: Path) -> None:
    run(tmp_path, replace(CONFIG, steps=3, decay=0.0))
    saved = torch.load(tmp_path / "training.pt", weights_only=True)
    del saved["training"]["shift"]
    torch.save(saved, tmp_path / "training.pt")
    assert run(tmp_path, replace(CONFIG, decay=0.0), resume=True).step == 6


@pytest.mark.parametrize("how", [shutil.copytree, shutil.move])
def test_a_run_copied_or_renamed_goes_on_in_the_same_weights_file(tmp_path: Path, how: Any) -> None:
    """Beside a second one, the first would stay as it was, and be served by the folder."""
    level = replace(CONFIG, decay=0.0)
    run(tmp_path / "a", replace(level, steps=2))
    how(tmp_path / "a", tmp_path / "z")
    for steps in (4, 6):
        resumed = run(tmp_path / "z", replace(level, steps=steps), resume=True)
        assert [path.name for path in (tmp_path / "z").glob("*.safetensors")] == ["a.safetensors"]
        assert load_by_name(tmp_path / "z").facts["steps"] == steps
        assert resumed.weights == tmp_path / "z" / "a.safetensors"


def test_a_run_whose_weights_were_renamed_with_it_goes_on_in_those(tmp_path: Path) -> None:
    level = replace(CONFIG, decay=0.0)
    run(tmp_path / "a", replace(level, steps=2))
    (tmp_path / "a").rename(tmp_path / "z")
    (tmp_path / "z" / "a.safetensors").rename(weights_of(tmp_path / "z"))
    run(tmp_path / "z", level, resume=True)
    assert [*(tmp_path / "z").glob("*.safetensors")] == [weights_of(tmp_path / "z")]
    assert load_by_name(tmp_path / "z").facts["steps"] == 6


def test_a_run_of_before_its_weights_were_named_goes_on_in_its_folder_s(tmp_path: Path) -> None:
    run(tmp_path, replace(CONFIG, steps=3, decay=0.0))
    saved = torch.load(tmp_path / "training.pt", weights_only=True)
    assert saved.pop("weights") == weights_of(tmp_path).name
    torch.save(saved, tmp_path / "training.pt")
    assert run(tmp_path, replace(CONFIG, decay=0.0), resume=True).weights == weights_of(tmp_path)


def test_a_run_can_be_made_longer(tmp_path: Path) -> None:
    """Until the learning rate falls (never here), longer is what it would have been at once."""
    level = replace(CONFIG, decay=0.0)
    run(tmp_path / "parts", replace(level, steps=3))
    longer = run(tmp_path / "parts", replace(level, steps=6, checkpoint_every=2), resume=True)
    assert longer.step == 6
    assert_same_bits(state(longer), state(run(tmp_path / "whole", level)))


def test_a_run_can_start_from_a_checkpoint(tmp_path: Path) -> None:
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
    with pytest.raises(CheckpointError, match=r"another network \(d_ff\); start from the same"):
        Trainer(replace(MODEL, d_ff=32), CONFIG, tmp_path / "other", CPU).start_from(path)


def test_a_run_that_goes_on_past_its_end_is_said_to_cost_something(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(tmp_path)
    run(tmp_path, resume=True)
    assert "learning rate" not in caplog.text
    run(tmp_path, replace(CONFIG, steps=60), resume=True)
    assert "the learning rate had fallen to 0 % and continues at" in caplog.text


def test_a_shift_leaves_something_of_a_picture(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="shift must be less than the image's 4 pixels a side; got 4"
    ):
        run(tmp_path, replace(CONFIG, shift=4))


def test_a_torn_line_of_the_log_costs_itself_alone(tmp_path: Path) -> None:
    """As of a full disk: the run goes on, its log too, and its curve is drawn."""
    run(tmp_path, replace(CONFIG, steps=2))
    log = tmp_path / "log.jsonl"
    log.write_text(log.read_text()[:-20])
    run(tmp_path, replace(CONFIG, steps=4), resume=True)
    training, _ = read_curve(log)
    assert training[:, 0].tolist() == [1, 3, 4]


@pytest.mark.usefixtures("unfrozen")
def test_garbage_collections_leave_alone_what_was_there(tmp_path: Path) -> None:
    """While it trains, and no longer, also where it fails."""
    frozen: list[int] = []

    def watch(*_: object) -> None:
        frozen.append(gc.get_freeze_count())
        raise KeyboardInterrupt

    trainer = Trainer(MODEL, replace(CONFIG, evaluate_every=1), tmp_path, CPU)
    with pytest.raises(KeyboardInterrupt):
        trainer.train(dataset(), None, StopSignal(), quiet=True, after_validation=watch)
    assert frozen[0] > 0
    assert gc.get_freeze_count() == 0
    gc.freeze()
    with frozen_gc():
        pass
    assert gc.get_freeze_count() > 0  # another's, who goes on


def test_a_resumed_run_keeps_its_time_and_its_validations(tmp_path: Path) -> None:
    config, held_out = replace(CONFIG, evaluate_every=2, decay=0.0), dataset(3, seed=5)
    run(tmp_path, replace(config, steps=4), validation=held_out)
    path = tmp_path / "training.pt"
    torch.save(torch.load(path, weights_only=True) | {"seconds": 1000.0}, path)
    run(tmp_path, config, resume=True, validation=held_out)
    facts = load_checkpoint(weights_of(tmp_path)).facts
    assert [one["step"] for one in facts["validation"]] == [2, 4, 6]
    assert facts["training_seconds"] >= 1000


def test_how_images_are_drawn_outlasts_training_on(tmp_path: Path) -> None:
    """Said of the weights between two parts of a run, or of those that another began with."""
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


def test_a_run_says_how_many_images_it_held_out(tmp_path: Path) -> None:
    run(tmp_path, validation=dataset(9, seed=5))
    assert read_saved_run(tmp_path).held_out == 9
