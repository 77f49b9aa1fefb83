"""Processes that train together, a share of each batch each: started here, or by ``torchrun``.

A step is many short operations, and threads meet after each of them; processes meet a few times a
step (``exchange.py``). So on a CPU one process a core, of one thread, trains faster than one of
many threads.
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
from torch.distributed.distributed_c10d import _set_pg_timeout, _world
from tqdm import tqdm

from scanline.kernels.native.build import TRAINING, NativeBuildError, load_build
from scanline.kernels.native.cpu import usable_cores
from scanline.model.training.stop_signal import STOP_SIGNALS

_FEWEST = 4  # images for each: with fewer, what each does for itself costs more than it gains
_MEETING = timedelta(minutes=2)  # for all processes of this machine to join
_MEETING_AFAR = timedelta(minutes=10)  # for torchrun's, on whatever machines
# For one to validate, or to write, while the others wait: gloo notices if it ends, NCCL never does.
_PATIENCE = {"gloo": timedelta(days=1), "nccl": timedelta(hours=1)}
_FAREWELL = 30.0  # seconds for the others to end after the last step
_LETTING_GO = 0.1  # seconds for torch's own thread to take a lock, before its end is waited for
_NOTICE = 10.0  # seconds in which one that broke the group is seen to have ended


def choose_process_count(batch: int, wanted: int | None) -> int:
    """Choose how many processes share batches of so many images on this machine.

    ``wanted`` may be any number that divides the batch, on GPUs no more than there are; if None, a
    GPU takes them all, and on a CPU there is one a core, or as many fewer as divide the batch into
    shares of four images or more. Raises ``ValueError`` on another wish, and on any where
    ``torchrun`` has chosen already.
    """
    if wanted is not None and "RANK" in os.environ:
        raise ValueError("torchrun has started the processes: leave --processes out")
    gpus = torch.cuda.device_count()
    if wanted is None:
        if gpus or "RANK" in os.environ:
            return 1
        most = max(1, min(_cores(), batch // _FEWEST))
        return next(count for count in range(most, 0, -1) if batch % count == 0)
    if batch % wanted:
        raise ValueError(f"a batch of {batch} images does not divide by {wanted} processes")
    if 0 < gpus < wanted:
        raise ValueError(f"there are {gpus} GPUs for {wanted} processes; give one to each")
    return wanted


@contextlib.contextmanager
def process_group(
    count: int, work: Callable[..., object], *arguments: object
) -> Iterator[torch.device]:
    """Join ``count`` processes in one group for the block, this being the first; gives its device.

    The others are started, and each runs ``work(device, *arguments)``, for which all of this is
    pickled. Where ``torchrun`` has started this process, its group is joined instead and ``count``
    is 1. Raises ``RuntimeError`` where one of the others ends early; at the block's end none is
    left.
    """
    if count == 1:
        device = _device(int(os.environ.get("LOCAL_RANK", 0)))
        with _group(device) if "RANK" in os.environ else contextlib.nullcontext(device):
            yield device
        return
    if not torch.cuda.is_available():
        with contextlib.suppress(NativeBuildError):  # each says so itself
            load_build(source=TRAINING)  # or all would compile it at once
    with (
        tempfile.TemporaryDirectory() as folder,
        _loopback(),
        _started(count, Path(folder, "store")) as others,
        _threads(max(1, _cores() // count)),
        contextlib.ExitStack() as group,
    ):
        try:
            place = _place(0, count, Path(folder, "store"))
            device = group.enter_context(_group(_device(0), **place))
            for other in others:
                other.tell((work, arguments))  # not sooner: it might fail while we join
            yield device
            for other in others:
                with contextlib.suppress(RuntimeError):  # it is not needed any more
                    other.tell(None)
            for other in others:
                other.process.join(_FAREWELL)
        except RuntimeError as error:
            ended = wait([other.process.sentinel for other in others], _NOTICE)
            for other in others:
                if other.process.sentinel in ended:
                    other.process.join()
            # One that was killed comes first: of the others it broke the group.
            codes = sorted(code for other in others if (code := other.process.exitcode))
            # What kept all from meeting is said by our own.
            if codes and (dist.is_initialized() or codes[0] < 0):
                raise RuntimeError(_ended(codes[0])) from error
            raise
        finally:
            for other in others:  # before the group goes, of which they would complain
                other.process.kill()


@contextlib.contextmanager
def all_cores() -> Iterator[None]:
    """Use every core inside the block, as one process may while the others wait for it."""
    with _threads(_cores() if dist.is_initialized() else torch.get_num_threads()):
        yield


def _cores() -> int:
    """Count the cores to use, fewer if ``OMP_NUM_THREADS`` says so."""
    told = os.environ.get("OMP_NUM_THREADS", "")
    return min(usable_cores(), int(told)) if told.isdigit() and int(told) else usable_cores()


def _device(rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(rank)
    return torch.device("cuda", rank)


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _loopback() -> Iterator[None]:
    """Let gloo listen at the loopback, and in no network that may be open, or go away.

    An interface that the environment names is kept.
    """
    name = "GLOO_SOCKET_IFNAME"
    inner = [one for _, one in socket.if_nameindex() if one in ("lo", "lo0")]
    if name in os.environ or not inner:
        yield
        return
    os.environ[name] = inner[0]
    try:
        yield
    finally:
        del os.environ[name]


@contextlib.contextmanager
def _group(device: torch.device, **how: Any) -> Iterator[torch.device]:
    hook = sys.excepthook  # which torch puts one of its own around
    try:
        _join(device, **how)
        try:
            yield device
        finally:
            time.sleep(_LETTING_GO)
            dist.destroy_process_group()
    finally:
        sys.excepthook = hook


class _Other(NamedTuple):
    process: BaseProcess
    connection: Connection

    def tell(self, message: object) -> None:
        """Send it something; raises ``RuntimeError`` where it has ended."""
        try:
            self.connection.send(message)
        except ConnectionError as error:
            raise RuntimeError("it has ended") from error


@contextlib.contextmanager
def _started(count: int, store: Path) -> Iterator[list[_Other]]:
    """Start all but the first, and wait until each is about to join the group."""
    spawn = multiprocessing.get_context("spawn")  # torch's threads would not outlive a fork
    others: list[_Other] = []
    try:
        with _signals_later():
            for rank in range(1, count):
                here, there = spawn.Pipe()
                process: BaseProcess = spawn.Process(
                    target=_help, args=(there, rank, count, store), daemon=True
                )
                process.start()
                there.close()
                others.append(_Other(process, here))
        for process, connection in others:
            try:
                connection.recv()
            except (EOFError, ConnectionError):
                process.join()
                raise RuntimeError(_ended(process.exitcode)) from None
        yield others
    finally:
        for other in others:  # all, before any is waited for
            other.process.kill()
        for process, connection in others:
            process.join()
            connection.close()


@contextlib.contextmanager
def _signals_later() -> Iterator[None]:
    """Let signals to stop wait for the block's end; processes started in it never see them."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # it would let them through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _help(first: Connection, rank: int, count: int, store: Path) -> None:
    """Be one of the others: leave after the first, or with it, which alone heeds signals.

    What the user can mend the first meets too, and says.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_leave_with_the_first, daemon=True).start()
    tqdm.set_lock(threading.RLock())  # for its own, Python would complain if this one is killed
    status = 1
    try:
        device = _device(rank)
        first.send(rank)
        torch.set_num_threads(max(1, _cores() // count))
        _join(device, **_place(rank, count, store))
        work, arguments = first.recv()
        try:
            work(device, *arguments)
        except (ValueError, FloatingPointError):
            if not first.poll(_FAREWELL):  # by then it would have ended us, had it met that too
                raise
        first.recv()  # or the group would be broken before the first has all of the last step
        status = 0
    except BaseException:
        starter = multiprocessing.parent_process()
        if starter is None or starter.is_alive():  # else it is why we end
            traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)  # a broken group's end may wait for ever, for a lock that it holds itself


def _leave_with_the_first() -> None:
    first = multiprocessing.parent_process()
    if first is not None:
        wait([first.sentinel])
        os._exit(1)


def _place(rank: int, count: int, store: Path) -> dict[str, Any]:
    shared = FileStore(str(store), count)
    return {"rank": rank, "world_size": count, "store": shared, "timeout": _MEETING}


def _join(device: torch.device, timeout: timedelta = _MEETING_AFAR, **how: Any) -> None:
    backend, groups = "nccl" if device.type == "cuda" else "gloo", _world.group_count
    if dist.is_initialized():
        raise RuntimeError("this process is of a group already: end that first")
    try:
        dist.init_process_group(backend, timeout=timeout, **how)
        _set_pg_timeout(_PATIENCE[backend])
    except BaseException:
        if dist.is_initialized():
            dist.destroy_process_group()
        # torch has counted it, and would look for the others of the next under another name.
        _world.group_count = groups
        raise


def _ended(code: int | None) -> str:
    how = f"ended with status {code}, see above"
    if code is not None and code < 0:
        how = f"was killed by signal {-code}"
    return (
        f"one of the training processes {how}; --resume goes on from what was saved last, if "
        "anything was"
    )
