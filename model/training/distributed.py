"""Data-parallel processes, started here or by ``torchrun``.

A training step consists of many short operations. The threads of one process synchronize after each
of them, but processes only a few times per step (``collectives.py``). On a CPU one single-threaded
process per core is therefore faster than one process with many threads.

The first process is the one that the user started: it reads the data, shows the progress and
handles signals. ``torch.multiprocessing.start_processes`` and ``torchrun`` would start all of them
as children, so the others are spawned here.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import FileStore  # type: ignore[attr-defined]

from scanline.kernels.native.build import TRAINING, NativeBuildError, load_build
from scanline.kernels.native.cpu import usable_cores
from scanline.model.training.stop_signal import STOP_SIGNALS

_MIN_IMAGES = 4  # per process: with fewer, the fixed cost per process exceeds the gain
_JOIN_TIMEOUT = timedelta(minutes=2)  # for the processes of this machine
_TORCHRUN_JOIN_TIMEOUT = timedelta(minutes=10)  # for processes on any machines
# One process validates or writes a checkpoint while the others wait in a collective operation. Gloo
# notices if it ends meanwhile; NCCL does not.
_COLLECTIVE_TIMEOUT = {"gloo": timedelta(days=1), "nccl": timedelta(hours=1)}
_EXIT_SECONDS = 30.0  # for the other processes to exit after the last step
_LOCK_SECONDS = 0.1  # for torch's own thread to take a lock before the group is destroyed
_CRASH_SECONDS = 10.0  # between a broken collective operation and the visible exit of its cause


def choose_process_count(batch: int, wanted: int | None) -> int:
    """Choose the number of data-parallel processes on this machine.

    Args:
        batch: Images per step.
        wanted: The user's choice; None means one process for all GPUs, or on a CPU the largest
            number that divides the batch, up to one per core and one per four images.

    Raises:
        ValueError: If ``wanted`` does not divide the batch, exceeds the number of GPUs, or is given
            although ``torchrun`` has started the processes.
    """
    if wanted is not None and "RANK" in os.environ:
        raise ValueError("torchrun has started the processes already: leave --processes out")
    gpus = torch.cuda.device_count()
    if wanted is None:
        if gpus or "RANK" in os.environ:
            return 1
        limit = max(1, min(_cores(), batch // _MIN_IMAGES))
        return next(count for count in range(limit, 0, -1) if batch % count == 0)
    if batch % wanted:
        raise ValueError(f"a batch of {batch} images cannot be divided among {wanted} processes")
    if 0 < gpus < wanted:
        raise ValueError(f"--processes must be at most {gpus}, one per GPU; got {wanted}")
    return wanted


@contextlib.contextmanager
def process_group(
    count: int, work: Callable[..., object], *arguments: object
) -> Iterator[torch.device]:
    """Join a process group inside the block as its first process, and yield its device.

    The other processes are started, and none is left after the block. In a process started by
    ``torchrun`` its group is joined instead. A process whose group could not be joined should exit:
    torch would join its next group under another name than the others.

    Args:
        count: Number of processes; 1 under ``torchrun``.
        work: Called in each of the other processes as ``work(device, *arguments)``; pickled.
        arguments: Pickled arguments of ``work``.

    Raises:
        RuntimeError: If another process ended early.
    """
    if count == 1:
        device = _device(int(os.environ.get("LOCAL_RANK", 0)))
        with _joined_group(device) if "RANK" in os.environ else contextlib.nullcontext(device):
            yield device
        return
    if not torch.cuda.is_available():
        with contextlib.suppress(NativeBuildError):  # each process reports it itself
            load_build(source=TRAINING)  # compile it once, before all processes need it
    with (
        tempfile.TemporaryDirectory() as folder,
        _loopback(),
        _spawned_workers(count, Path(folder, "store")) as workers,
        _threads(max(1, _cores() // count)),
        contextlib.ExitStack() as group,
    ):
        try:
            rendezvous = _rendezvous(0, count, Path(folder, "store"))
            device = group.enter_context(_joined_group(_device(0), **rendezvous))
            for worker in workers:
                worker.send((work, arguments))  # after joining, which the work could break
            yield device
            for worker in workers:
                with contextlib.suppress(RuntimeError):  # its result is not needed
                    worker.send(None)
            for worker in workers:
                worker.process.join(_EXIT_SECONDS)
        except RuntimeError as error:
            ended = wait([worker.process.sentinel for worker in workers], _CRASH_SECONDS)
            for worker in workers:
                if worker.process.sentinel in ended:
                    worker.process.join()
            # Negative codes come first: a killed process is the cause, the others followed it.
            codes = sorted(code for worker in workers if (code := worker.process.exitcode))
            # Our own error tells why the group could not be joined, unless a worker was killed.
            if codes and (dist.is_initialized() or codes[0] < 0):
                raise RuntimeError(_exit_message(codes[0])) from error
            raise
        finally:
            for worker in workers:  # before the group is destroyed, which they would report
                worker.process.kill()


@contextlib.contextmanager
def all_cores() -> Iterator[None]:
    """Use all cores in this process inside the block, while the other processes wait."""
    with _threads(_cores() if dist.is_initialized() else torch.get_num_threads()):
        yield


def _cores() -> int:
    """Return the number of usable cores, limited by ``OMP_NUM_THREADS``."""
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(usable_cores(), int(limit)) if limit.isdigit() and int(limit) else usable_cores()


def _device(rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(rank)
    return torch.device("cuda", rank)


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    previous = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(previous)


@contextlib.contextmanager
def _loopback() -> Iterator[None]:
    """Make gloo listen on the loopback interface only, unless the environment names another.

    Other networks may be open to strangers or disappear during the run.
    """
    name = "GLOO_SOCKET_IFNAME"
    interfaces = [interface for _, interface in socket.if_nameindex()]
    loopback = [interface for interface in interfaces if interface in ("lo", "lo0")]
    if name in os.environ or not loopback:
        yield
        return
    os.environ[name] = loopback[0]
    try:
        yield
    finally:
        del os.environ[name]


@contextlib.contextmanager
def _joined_group(device: torch.device, **options: Any) -> Iterator[torch.device]:
    hook = sys.excepthook  # torch replaces it
    try:
        _join(device, **options)
        try:
            yield device
        finally:
            time.sleep(_LOCK_SECONDS)
            dist.destroy_process_group()
    finally:
        sys.excepthook = hook


class _Worker(NamedTuple):
    """Another process of the group, seen from the first."""

    process: BaseProcess
    connection: Connection

    def send(self, message: object) -> None:
        """Send a message; raise ``RuntimeError`` if the process has ended."""
        try:
            self.connection.send(message)
        except ConnectionError as error:
            raise RuntimeError("a training process has ended") from error


@contextlib.contextmanager
def _spawned_workers(count: int, store: Path) -> Iterator[list[_Worker]]:
    """Start all processes but the first, and wait until each is about to join the group."""
    spawn = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    workers: list[_Worker] = []
    try:
        with _blocked_signals():
            for rank in range(1, count):
                ours, theirs = spawn.Pipe()
                process: BaseProcess = spawn.Process(
                    target=_worker_main, args=(theirs, rank, count, store), daemon=True
                )
                process.start()
                theirs.close()
                workers.append(_Worker(process, ours))
        for process, connection in workers:
            try:
                connection.recv()
            except (EOFError, ConnectionError):
                process.join()
                raise RuntimeError(_exit_message(process.exitcode)) from None
        yield workers
    finally:
        for worker in workers:  # kill all before waiting for any
            worker.process.kill()
        for process, connection in workers:
            process.join()
            connection.close()


@contextlib.contextmanager
def _blocked_signals() -> Iterator[None]:
    """Block stop signals inside the block; processes started in it inherit the mask."""
    resource_tracker.ensure_running()  # when it starts, it unblocks signals
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _worker_main(first: Connection, rank: int, count: int, store: Path) -> None:
    """Run a process other than the first: it ignores signals and exits with or after the first.

    Errors that the user can fix also occur in the first process, which reports them.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    status = 1
    try:
        device = _device(rank)
        first.send(rank)
        torch.set_num_threads(max(1, _cores() // count))
        _join(device, **_rendezvous(rank, count, store))
        work, arguments = first.recv()
        try:
            work(device, *arguments)
        except (ValueError, FloatingPointError):
            # The first process would have killed us by now if it had met the same error.
            if not first.poll(_EXIT_SECONDS):
                raise
        first.recv()  # exiting earlier could break the last collective operation of the first
        status = 0
    except BaseException:
        parent = multiprocessing.parent_process()
        if parent is None or parent.is_alive():  # else its end is the cause
            traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)  # destroying a broken group may deadlock


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _rendezvous(rank: int, count: int, store: Path) -> dict[str, Any]:
    file_store = FileStore(str(store), count)
    return {"rank": rank, "world_size": count, "store": file_store, "timeout": _JOIN_TIMEOUT}


def _join(
    device: torch.device, timeout: timedelta = _TORCHRUN_JOIN_TIMEOUT, **options: Any
) -> None:
    if dist.is_initialized():
        raise RuntimeError("this process is already in a process group: destroy it first")
    backend = "nccl" if device.type == "cuda" else "gloo"
    try:
        dist.init_process_group(backend, timeout=timeout, **options)
        group = dist.group.WORLD
        assert group is not None
        group.set_timeout(_COLLECTIVE_TIMEOUT[backend])
    except BaseException:
        if dist.is_initialized():
            dist.destroy_process_group()
        raise


def _exit_message(code: int | None) -> str:
    how = f"ended with status {code}, see above"
    if code is not None and code < 0:
        how = f"was killed by signal {-code}"
    return (
        f"one of the training processes {how}; use --resume to continue from the last "
        "checkpoint, if there is one"
    )
