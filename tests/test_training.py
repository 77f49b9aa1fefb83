"""Training: learns, resumes to the bit, stops cleanly, and measures what it says it measures."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scanline.model.checkpoint import CheckpointError, load_checkpoint
from scanline.model.config import NO_LABEL, ModelConfig
from scanline.model.data.published import Dataset
from scanline.model.evaluation import evaluate
from scanline.model.recipe import TrainingConfig, batch_indices, learning_rate_factor
from scanline.model.stop import Stop
from scanline.model.training import Trainer
from tests.conftest import ROOT, random_network, tiny_config

CPU = torch.device("cpu")
CLASSES = ("up", "down")
MODEL = tiny_config(classes=CLASSES, n_layers=1)
CONFIG = TrainingConfig(
    steps=6, batch=4, seed=3, warmup=2, checkpoint_every=100, evaluate_every=100, precision="fp32"
)


def dataset(count: int = 22, seed: int = 0) -> Dataset:
    """Give images that a network can learn: brighter downwards or upwards, with a little noise."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 2, count)
    ramp = np.arange(MODEL.height)[None, :, None, None] * 40
    ramp = np.where(labels[:, None, None, None] == 0, ramp, 160 - ramp)
    noise = generator.integers(0, 8, (count, MODEL.height, MODEL.width, 1))
    return Dataset("ramps", (ramp + noise).astype(np.uint8), labels.astype(np.int64), CLASSES)


def run(
    folder: Path,
    config: TrainingConfig = CONFIG,
    *,
    resume: bool = False,
    model: ModelConfig = MODEL,
    stop: Stop | None = None,
    validation: Dataset | None = None,
) -> Trainer:
    trainer = Trainer(model, config, folder, CPU)
    if resume:
        trainer.resume()
    trainer.train(dataset(), validation, stop or Stop(), quiet=True)
    return trainer


def assert_same_bits(one: Any, other: Any, where: str = "") -> None:
    """Compare nested states: equal to the last bit, and nothing missing."""
    assert type(one) is type(other), where
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_same_bits(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same_bits(a, b, f"{where}[{i}]")
    else:
        assert one == other, where


def state(trainer: Trainer) -> dict[str, Any]:
    return {
        "step": trainer.step,
        "model": dict(trainer.model.state_dict()),
        "average": dict(trainer.average.state_dict()),
        "optimizers": [optimizer.state_dict()["state"] for optimizer in trainer.optimizers],
    }


def weights_of(folder: Path) -> Path:
    """Give the file to serve: named after its run, as the server names models after files."""
    return folder / f"{folder.name}.safetensors"


def log_of(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_the_loss_goes_down(tmp_path: Path) -> None:
    run(tmp_path, replace(CONFIG, steps=60))
    losses = [line["bits_per_dim"] for line in log_of(tmp_path)]
    assert len(losses) == 60
    assert losses[0] == pytest.approx(8, abs=1)  # a fresh network knows nothing of 256 values
    assert sum(losses[-5:]) / 5 < 6


def test_the_average_is_what_is_served_and_follows_the_weights(tmp_path: Path) -> None:
    trainer = run(tmp_path, replace(CONFIG, steps=60))
    served = load_checkpoint(weights_of(tmp_path))
    assert_same_bits(dict(served.model.state_dict()), dict(trainer.average.state_dict()))
    data = dataset(50, seed=1)
    averaged, last = evaluate(trainer.average, data), evaluate(trainer.model, data)
    fresh = evaluate(Trainer(MODEL, CONFIG, tmp_path, CPU).model, data)
    assert averaged.bits_per_dim < fresh.bits_per_dim - 1
    assert abs(averaged.bits_per_dim - last.bits_per_dim) < 1
    assert not torch.equal(
        trainer.average.head.predictor.weight, trainer.model.head.predictor.weight
    )
    assert served.facts["steps"] == 60
    assert served.facts["images_seen"] == 240
    assert served.facts["training"] == asdict(replace(CONFIG, steps=60))


def test_two_runs_of_one_seed_are_the_same_and_of_two_are_not(tmp_path: Path) -> None:
    first, second = run(tmp_path / "a"), run(tmp_path / "b")
    assert_same_bits(state(first), state(second))
    other = run(tmp_path / "c", replace(CONFIG, seed=4))
    assert not torch.equal(first.model.head.predictor.bias, other.model.head.predictor.bias)


@pytest.mark.parametrize("cut", [1, 3, 5])
def test_stopped_and_resumed_equals_run_through(tmp_path: Path, cut: int) -> None:
    """Weights, average, both optimizers and the steps after: all to the bit."""
    whole = run(tmp_path / "whole", CONFIG)
    stop = Stop()

    class Counting(Trainer):
        def _log(self, **fields: float) -> None:
            super()._log(**fields)
            stop.asked |= self.step == cut

    stopped = Counting(MODEL, CONFIG, tmp_path / "parts", CPU)
    stopped.train(dataset(), None, stop, quiet=True)
    assert stopped.step == cut
    torch.manual_seed(99)  # whatever ran between has no say
    resumed = run(tmp_path / "parts", CONFIG, resume=True)
    assert_same_bits(state(resumed), state(whole))
    assert_same_bits(
        dict(load_checkpoint(weights_of(tmp_path / "parts")).model.state_dict()),
        dict(load_checkpoint(weights_of(tmp_path / "whole")).model.state_dict()),
    )
    logs = [
        [line["bits_per_dim"] for line in log_of(tmp_path / name)] for name in ("parts", "whole")
    ]
    assert logs[0] == logs[1]


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
    assert_same_bits(trainer.model.state_dict(), before.average.state_dict())
    assert_same_bits(trainer.average.state_dict(), before.average.state_dict())
    trainer.train(dataset(), None, Stop(), quiet=True)
    assert (
        log_of(tmp_path / "after")[0]["bits_per_dim"]
        < log_of(tmp_path / "before")[20]["bits_per_dim"]
    )
    origin = {"name": "before", "images_seen": 160}
    assert load_checkpoint(weights_of(tmp_path / "after")).facts["started_from"] == origin
    assert run(tmp_path / "after", resume=True).origin == origin
    third = Trainer(MODEL, CONFIG, tmp_path / "third", CPU)
    third.start_from(weights_of(tmp_path / "after"))
    assert third.origin == {"name": "after", "images_seen": 160 + CONFIG.steps * CONFIG.batch}
    with pytest.raises(CheckpointError, match=r"of another network \(d_ff\); start from one"):
        Trainer(replace(MODEL, d_ff=32), CONFIG, tmp_path / "other", CPU).start_from(path)


def test_a_finished_run_resumes_to_nothing(tmp_path: Path) -> None:
    run(tmp_path)
    before = (tmp_path / "training.pt").read_bytes()
    assert run(tmp_path, resume=True).step == 6
    assert (tmp_path / "training.pt").read_bytes() == before
    assert len(log_of(tmp_path)) == 6


@pytest.mark.parametrize(
    "change",
    [
        {"batch": 2}, {"seed": 9}, {"learning_rate": 1e-3}, {"muon_rate": 0.1}, {"warmup": 3},
        {"edge_rate": 1e-5},
        {"average": 0.9}, {"drop_label": 0.5}, {"weight_decay": 0.0}, {"precision": "bf16"},
    ],
    ids=str,
)  # fmt: skip
def test_other_settings_do_not_resume(tmp_path: Path, change: dict[str, Any]) -> None:
    run(tmp_path, replace(CONFIG, steps=1))
    (name,) = change
    with pytest.raises(CheckpointError, match=rf"other settings \({name}\); give the same ones"):
        Trainer(MODEL, replace(CONFIG, **change), tmp_path, CPU).resume()


def test_another_model_does_not_resume(tmp_path: Path) -> None:
    run(tmp_path, replace(CONFIG, steps=1))
    with pytest.raises(CheckpointError, match="is of another model; give the run another folder"):
        Trainer(replace(MODEL, d_ff=32), CONFIG, tmp_path, CPU).resume()


@pytest.mark.parametrize("content", [None, b"", b"hello", b"PK\x03\x04" + bytes(50), bytes(500)])
def test_what_is_no_training_state_does_not_resume(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "training.pt").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"training.pt"):
        Trainer(MODEL, CONFIG, tmp_path, CPU).resume()


def test_a_truncated_or_foreign_state_does_not_resume(tmp_path: Path) -> None:
    run(tmp_path, replace(CONFIG, steps=1))
    path = tmp_path / "training.pt"
    path.write_bytes(path.read_bytes()[:4000])
    with pytest.raises(CheckpointError, match=r"training.pt is no PyTorch file"):
        Trainer(MODEL, CONFIG, tmp_path, CPU).resume()
    torch.save({"weight": torch.ones(2)}, path)
    with pytest.raises(CheckpointError, match=r"training.pt is not the state of a training run"):
        Trainer(MODEL, CONFIG, tmp_path, CPU).resume()


# Stopping.


def test_the_first_signal_asks_and_the_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Stop().listening() as stop:
        assert not stop.asked
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.asked
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL  # a second one kills
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


SCRIPT = """
import sys
from dataclasses import replace
from pathlib import Path
import torch
from scanline.model.stop import Stop
from scanline.model.training import Trainer, processes
from tests.test_training import CONFIG, MODEL, dataset
torch.set_num_threads(1)
folder, steps = Path(sys.argv[1]), int(sys.argv[2])
with processes() as device, Stop().listening() as stop:
    trainer = Trainer(MODEL, replace(CONFIG, steps=steps, decay=0.0), folder, device)
    trainer.train(dataset(), None, stop, quiet=True)
    print(f"stopped at {trainer.step}\\n", end="", flush=True)
"""


def start(folder: Path, steps: int, *launcher: str) -> subprocess.Popen[str]:
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "script.py"
    script.write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *launcher, str(script), str(folder), str(steps)],
        env=environment, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip


TWO = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def wait_for_steps(process: subprocess.Popen[str], folder: Path, count: int) -> None:
    log = folder / "log.jsonl"
    while not (log.exists() and len(log.read_text().splitlines()) >= count):
        assert process.poll() is None, process.communicate()[1]
        signal.sigtimedwait([], 0.05)


@pytest.mark.parametrize("launcher", [(), TWO], ids=["one", "torchrun"])
def test_control_c_leaves_a_run_to_resume(tmp_path: Path, launcher: tuple[str, ...]) -> None:
    """As a terminal does it: the signal goes to the group, and from torchrun to its processes."""
    process = start(tmp_path, 10**6, *launcher)
    try:
        wait_for_steps(process, tmp_path, 4)
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    steps = {int(part) for part in output.replace("stopped at", "").split()}
    assert len(steps) == 1, errors  # every process, after the same step
    assert output.count("stopped at") == (2 if launcher else 1)
    if not launcher:
        assert process.returncode == 0
    (done,) = steps
    assert len(log_of(tmp_path)) == done
    trainer = Trainer(MODEL, replace(CONFIG, steps=10**6, decay=0.0), tmp_path, CPU)
    trainer.resume()
    assert trainer.step == done
    assert load_checkpoint(weights_of(tmp_path)).facts["steps"] == done
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]


def test_two_processes_train_like_one(tmp_path: Path) -> None:
    process = start(tmp_path / "two", 6, *TWO)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    run(tmp_path / "one", replace(CONFIG, decay=0.0))
    one, two = (log_of(tmp_path / name) for name in ("one", "two"))
    assert [line["step"] for line in two] == [line["step"] for line in one] == [1, 2, 3, 4, 5, 6]
    for mine, theirs in zip(two, one, strict=True):
        assert mine["bits_per_dim"] == pytest.approx(theirs["bits_per_dim"], abs=2e-3)
    weights = [
        load_checkpoint(weights_of(tmp_path / name)).model.head.predictor.weight.detach()
        for name in ("one", "two")
    ]
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-2, atol=1e-3)


# What goes wrong.


class Poisoned(Trainer):
    """A run whose weights, or gradients alone, stop being numbers after the third step."""

    what = "weights"

    def take_step(self, images: torch.Tensor, labels: torch.Tensor | None) -> float:
        if self.step == 3 and self.what == "weights":
            with torch.no_grad():
                self.model.head.predictor.bias.fill_(torch.nan)
        elif self.step == 3:
            self.model.head.predictor.bias.register_hook(  # type: ignore[no-untyped-call]
                lambda grad: grad * torch.inf
            )
        return super().take_step(images, labels)


@pytest.mark.parametrize("what", ["weights", "gradient"])
def test_a_loss_that_is_no_number_stops_the_run_and_keeps_the_last_checkpoint(
    tmp_path: Path, what: str
) -> None:
    config = replace(CONFIG, checkpoint_every=2, steps=5, decay=0.0)
    trainer = Poisoned(MODEL, config, tmp_path, CPU)
    trainer.what = what
    with pytest.raises(FloatingPointError, match=r"at step 3: lower the learning rate and resume"):
        trainer.train(dataset(), None, Stop(), quiet=True)
    for parameter in load_checkpoint(weights_of(tmp_path)).model.parameters():
        assert parameter.isfinite().all()
    assert_same_bits(
        state(run(tmp_path, config, resume=True)), state(run(tmp_path / "healthy", config))
    )


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (Dataset("x", np.zeros((4, 4, 5, 1), np.uint8), None, CLASSES), "images are"),
        (Dataset("x", np.zeros((4, 5, 4, 3), np.uint8), None, CLASSES), "images are"),
        (Dataset("x", np.zeros((4, 5, 4, 1), np.uint8), None, ("a", "b")), "classes"),
        (Dataset("x", np.zeros((4, 5, 4, 1), np.uint8), None, ()), "classes"),
    ],
)
def test_data_that_does_not_fit_is_refused(tmp_path: Path, data: Dataset, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Trainer(MODEL, CONFIG, tmp_path, CPU).train(data, None, Stop(), quiet=True)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"steps": 0}, "steps must be at least 1, not 0"),
        ({"batch": -1}, "batch must be at least 1, not -1"),
        ({"checkpoint_every": 0}, "checkpoint_every must be at least 1"),
        ({"evaluate_every": 0}, "evaluate_every must be at least 1"),
        ({"learning_rate": -1e-3}, "learning_rate must be 0 or more"),
        ({"learning_rate": math.nan}, "learning_rate must be 0 or more, not nan"),
        ({"muon_rate": math.inf}, "muon_rate must be 0 or more, not inf"),
        ({"weight_decay": -1}, "weight_decay must be 0 or more"),
        ({"warmup": -1}, "warmup must be 0 or more"),
        ({"seed": -1}, "seed must be 0 or more"),
        ({"decay": 1.5}, "decay must be 0 to 1"),
        ({"average": -0.1}, "average must be 0 to 1"),
        ({"drop_label": math.nan}, "drop_label must be 0 to 1"),
        ({"precision": "fp8"}, "precision must be auto, bf16 or fp32, not 'fp8'"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        TrainingConfig(**({"steps": 10} | fields))


# What a step takes.


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


# Evaluation.


@pytest.mark.parametrize("batch", [1, 4, 64])
@pytest.mark.parametrize("with_label", [False, True])
def test_evaluation_is_the_mean_and_its_standard_error(with_label: bool, batch: int) -> None:
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


def test_a_given_first_value_is_not_counted() -> None:
    config = tiny_config(input="previous", start="given", head="logistic_mixture")
    network = random_network(config, dtype=torch.float32)
    data = replace(dataset(3), classes=(), labels=None)
    with torch.no_grad():
        bits = network.bits(torch.from_numpy(data.images.reshape(3, -1, 1)))
    assert evaluate(network, data).bits_per_dim == pytest.approx(
        float(bits.sum()) / 3 / 19, rel=1e-5
    )


def test_one_image_has_no_spread() -> None:
    result = evaluate(random_network(MODEL, dtype=torch.float32), dataset(1))
    assert (result.standard_error, result.images) == (0.0, 1)


def test_evaluation_refuses_what_does_not_fit() -> None:
    network = random_network(MODEL, dtype=torch.float32)
    wrong = Dataset("x", np.zeros((2, 4, 5, 1), np.uint8), None, ())
    with pytest.raises(ValueError, match="the model draws 5 × 4 × 1 images, the data holds 4 × 5"):
        evaluate(network, wrong)
    with pytest.raises(ValueError, match="evaluate without labels"):
        evaluate(network, replace(dataset(2), labels=None), with_label=True)
    with pytest.raises(ValueError, match="evaluate without labels"):
        evaluate(network, replace(dataset(2), classes=("x", "y")), with_label=True)


def test_real_images_can_be_trained_on_and_measured(tmp_path: Path, data_dir: Path) -> None:
    from scanline.model.data.published import load_dataset

    data = load_dataset("mnist", "test", data_dir).take(slice(0, 24))
    config = ModelConfig(
        height=28, width=28, classes=data.classes, n_layers=1, n_heads=2, d_model=32, d_ff=32
    )
    trainer = Trainer(config, replace(CONFIG, steps=8, batch=8), tmp_path, CPU)
    trainer.train(data, None, Stop(), quiet=True)
    losses = [line["bits_per_dim"] for line in log_of(tmp_path)]
    assert losses[-1] < losses[0] - 0.5
    assert 0 < evaluate(trainer.model, data).bits_per_dim < 8
