"""Tests of data-parallel processes: results, interruption and failures."""

from __future__ import annotations

import contextlib
import ipaddress
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from scanline.kernels.native.cpu import usable_cores
from scanline.model.checkpoint import load_checkpoint
from scanline.model.training import distributed
from scanline.model.training.distributed import choose_process_count, process_group
from scanline.model.training.trainer import Trainer
from tests.conftest import ROOT
from tests.model.training.fixtures import CONFIG, CPU, MODEL, log_of, run, weights_of

# `--standalone` with addresses instead of names, so that it works without /etc/hosts.
TORCHRUN = (
    "-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d",
    "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1",
)  # fmt: skip

# Each process of a script prints its ID.
TRAIN = """
import os
import sys
from dataclasses import replace
from pathlib import Path
import torch
from scanline.model.training.distributed import process_group
from scanline.model.training.stop_signal import StopSignal
from scanline.model.training.trainer import Trainer
from tests.model.training.fixtures import CONFIG, MODEL, dataset

def train(device, folder, stop=None):
    torch.set_num_threads(1)
    print(f"process {os.getpid()}\\n", end="", flush=True)
    trainer = Trainer(MODEL, replace(CONFIG, steps=10**6, decay=0.0), folder, device)
    trainer.train(dataset(), None, stop or StopSignal(), quiet=True)
    return trainer.step

if __name__ == "__main__":
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    with StopSignal().handling_signals() as stop, process_group(count, train, folder) as device:
        step = train(device, folder, stop)
    print(f"stopped at {step}\\n", end="", flush=True)
"""

ENDLESS = """
import os
import torch
from scanline.model.training.distributed import process_group

def work(device):
    torch.distributed.all_reduce(torch.ones(1, device=device))
    print(f"process {os.getpid()}\\n", end="", flush=True)
    while True:
        torch.distributed.all_reduce(torch.ones(1, device=device))

if __name__ == "__main__":
    with process_group(2, work) as device:
        work(device)
"""

StartScript = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start_script(tmp_path: Path) -> Iterator[StartScript]:
    """Return a function that starts a script, whose processes end with the test."""
    started: list[subprocess.Popen[str]] = []
    python_path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {"PYTHONPATH": python_path, "OMP_NUM_THREADS": "1"}

    def start(text: str, *arguments: object, launcher: Sequence[str] = ()) -> subprocess.Popen[str]:
        (script := tmp_path / "script.py").write_text(text)
        process = subprocess.Popen(
            [sys.executable, *launcher, str(script), *map(str, arguments)],
            env=os.environ | environment, cwd=ROOT, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.terminate()  # torchrun ends its workers, which are in other groups
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(40)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # any process left
        process.wait()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()


def wait_for_steps(process: subprocess.Popen[str], folder: Path, count: int) -> None:
    log = folder / "log.jsonl"
    while not (log.exists() and len(log.read_text().splitlines()) >= count):
        assert process.poll() is None, process.communicate()[1]
        signal.sigtimedwait([], 0.05)


def worker_ids(process: subprocess.Popen[str]) -> set[int]:
    """Return the IDs of the two training processes, which they print first."""
    assert process.stdout is not None
    return {int(process.stdout.readline().split()[1]) for _ in range(2)}


def has_ended(number: int) -> bool:
    """Return True if a process has ended, even if it has not been waited for."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "count"),
    [
        pytest.param((), 1, marks=pytest.mark.broad, id="one"),
        pytest.param((), 2, id="two"),
        pytest.param(TORCHRUN, 1, id="torchrun"),
    ],
)
@pytest.mark.usefixtures("default_sighup")
def test_run_trains_like_one_process_and_can_be_resumed(
    tmp_path: Path, start_script: StartScript, launcher: tuple[str, ...], count: int
) -> None:
    """SIGINT is sent to the process group, as a terminal does; workers ignore SIGHUP."""
    process = start_script(TRAIN, tmp_path, count, launcher=launcher)
    wait_for_steps(process, tmp_path, 4)
    if count == 2:
        (other,) = worker_ids(process) - {process.pid}
        os.kill(other, signal.SIGHUP)
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    messages = [line for line in output.splitlines() if line.startswith("stopped at")]
    assert len(messages) == (2 if launcher else 1)
    assert len(set(messages)) == 1, errors  # all processes stop after the same step
    if not launcher:
        assert process.returncode == 0, errors
        assert "Traceback" not in errors
    done = int(messages[0].removeprefix("stopped at"))
    log = log_of(tmp_path)
    assert [line["step"] for line in log] == list(range(1, done + 1))
    run(tmp_path / "one", replace(CONFIG, steps=6, decay=0.0))
    for mine, theirs in zip(log[:6], log_of(tmp_path / "one"), strict=False):
        assert mine["bits_per_dim"] == pytest.approx(theirs["bits_per_dim"], abs=2e-3)
    trainer = Trainer(MODEL, replace(CONFIG, steps=10**6, decay=0.0), tmp_path, CPU)
    trainer.resume()
    assert trainer.step == done
    assert load_checkpoint(weights_of(tmp_path)).facts["steps"] == done
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["worker", "first process"])
def test_killed_process_ends_the_run(
    tmp_path: Path, start_script: StartScript, killed: str
) -> None:
    """The first process gives the reason if a worker is killed."""
    process = start_script(ENDLESS)
    (other,) = worker_ids(process) - {process.pid}
    if killed == "worker":
        os.kill(other, signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
        assert process.returncode != 0  # torch may abort after the message
        (message,) = (line for line in errors.splitlines() if "RuntimeError: one of the" in line)
        assert "one of the training processes was killed by signal 9; use --resume" in message
    else:
        process.kill()
        process.wait()
    while not has_ended(other):  # until the time limit of the test
        signal.sigtimedwait([], 0.05)


@pytest.mark.slow
def test_error_of_one_worker_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    """The error has a type that the first process would report itself."""
    with (
        pytest.raises(RuntimeError, match=r"ended with status 1, see above"),
        process_group(2, _fail) as device,
    ):
        torch.distributed.all_reduce(torch.ones(1, device=device))
    assert "ValueError: only the other one" in capfd.readouterr().err
    with (
        pytest.raises((RuntimeError, TypeError, AttributeError)),
        process_group(2, lambda device: None),  # cannot be pickled
    ):
        raise AssertionError("the block must not be entered")
    assert not torch.distributed.is_initialized()


def _fail(device: torch.device) -> None:
    distributed._EXIT_SECONDS = 0.1
    raise ValueError("only the other one")


def test_worker_that_dies_while_starting_is_detected() -> None:
    over = threading.Event()

    def kill_the_other() -> None:
        while not (others := multiprocessing.active_children()) and not over.wait(0.01):
            pass
        for other in others:
            other.kill()

    killer = threading.Thread(target=kill_the_other)
    killer.start()
    try:
        with (
            pytest.raises(RuntimeError, match="was killed by signal 9"),
            process_group(2, _take, bytes(2**25)),
        ):
            raise AssertionError("the block must not be entered")
    finally:
        over.set()
        killer.join()
    assert not multiprocessing.active_children()


def _take(device: torch.device, data: bytes) -> None:
    pass


def test_error_in_all_processes_is_reported_once(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="both"), process_group(2, _refuse) as device:
        _refuse(device)
    assert "both" not in capfd.readouterr().err
    assert not torch.distributed.is_initialized()


def _refuse(device: torch.device) -> None:
    raise ValueError("both")


def test_choose_process_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(distributed, "usable_cores", lambda: 6)
    if torch.cuda.is_available():
        assert choose_process_count(16, None) == 1
        return
    assert [choose_process_count(batch, None) for batch in (1, 7, 8, 12, 16, 30, 64)] == [
        1, 1, 2, 3, 4, 6, 4,
    ]  # fmt: skip
    assert choose_process_count(16, 8) == 8  # explicit
    with pytest.raises(ValueError, match="16 images cannot be divided among 3 processes"):
        choose_process_count(16, 3)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert choose_process_count(16, None) == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "0")  # no limit
    assert choose_process_count(16, None) == 4
    monkeypatch.setenv("RANK", "0")
    assert choose_process_count(16, None) == 1
    with pytest.raises(ValueError, match="leave --processes out"):
        choose_process_count(16, 2)


def _nothing(device: torch.device) -> None:
    pass


INTERFACE = "GLOO_SOCKET_IFNAME"
# NCCL chooses its interface itself, and only Linux lists the addresses of sockets.
USES_GLOO = Path("/proc/self/net/tcp").exists() and not torch.cuda.is_available()


@pytest.mark.skipif(not USES_GLOO, reason="needs gloo on Linux")
def test_process_group_uses_interface_of_environment(
    monkeypatch: pytest.MonkeyPatch, start_script: StartScript
) -> None:
    """In another process, because PyTorch counts a group that could not be created."""
    monkeypatch.setenv(INTERFACE, "no_such_interface")
    process = start_script(ENDLESS)
    _, errors = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "no_such_interface" in errors


def test_process_group_divides_cores_and_uses_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also, a worker that dies after the last step is ignored, and all settings are restored."""
    hook, threads = sys.excepthook, torch.get_num_threads()
    monkeypatch.delenv(INTERFACE, raising=False)
    with process_group(2, _nothing) as device:
        assert device.type in ("cpu", "cuda")
        assert torch.distributed.get_world_size() == 2
        assert torch.get_num_threads() == max(1, distributed._cores() // 2)
        with distributed.all_cores():
            assert torch.get_num_threads() == distributed._cores() <= usable_cores()
        if USES_GLOO:
            assert (_addresses(), os.environ[INTERFACE]) == ({"127.0.0.1"}, "lo")
        for other in multiprocessing.active_children():
            other.kill()
            other.join()
    assert not multiprocessing.active_children()
    assert torch.get_num_threads() == threads
    assert INTERFACE not in os.environ
    assert sys.excepthook is hook


def _addresses() -> set[str]:
    """Return the addresses of this process's TCP sockets in any state."""
    inodes = set[str]()
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(str(file.readlink()).removeprefix("socket:[").removesuffix("]"))
    found = set[str]()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/self/net", table).read_text().splitlines()[1:]:
            _, address, *_ = fields = line.split()
            if fields[9] in inodes:
                raw = bytes.fromhex(address.split(":")[0])
                found.add(str(ipaddress.ip_address(b"".join(_words(raw)))))
    return found


def _words(raw: bytes) -> list[bytes]:
    return [raw[i : i + 4][::-1] for i in range(0, len(raw), 4)]
