"""Signals: a run that is asked to stop ends after its step and can be resumed."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from scanline.model.checkpoint import load_checkpoint
from scanline.model.stop import Stop
from scanline.model.training import Trainer
from tests.training.fixtures import CONFIG, CPU, MODEL, log_of, run, start, weights_of


def test_the_first_signal_asks_and_the_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Stop().listening() as stop:
        assert not stop.asked
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.asked
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL  # a second one kills
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


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
