"""The native passes of training on a CPU: the library, for as many threads as torch has.

Beside this file are the torch operators that run them, which compile and differentiate. Each does
in one pass over memory what torch does in many, and gives the same numbers but for rounding;
``None`` from ``passes`` says that this machine cannot build them. Sums are float32, whatever the
tensors' dtype, and do not depend on the number of threads or on other images.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import os
import threading
import weakref
from collections.abc import Iterator
from contextvars import ContextVar

import torch
from torch import Tensor

from scanline.kernels.custom_op import assume_constant_result
from scanline.kernels.native.build import TRAINING, NativeBuildError, load_build

log = logging.getLogger("scanline.native")

_HANDLE, _COUNT, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
# The arguments of each function of training.cpp after the pool, and how many arrays end them.
_FUNCTIONS: dict[str, tuple[list[type], int]] = {
    "attention_forward": ([_HANDLE, _INT], 6),
    "attention_backward": ([_HANDLE, _INT], 10),
    "residual_forward": ([_HANDLE, _INT], 8),
    "residual_backward": ([_HANDLE, _INT], 9),
    "bias_gelu_forward": ([_COUNT, _COUNT, _COUNT, _INT], 3),
    "bias_gelu_backward": ([_COUNT, _COUNT, _COUNT, _INT], 5),
    "mixture_nll": ([_COUNT, _COUNT, _INT, _COUNT], 4),
    "categorical_forward": ([_COUNT, _COUNT], 4),
    "categorical_backward": ([_COUNT, _COUNT], 5),
    "weight_gradient": ([_COUNT, _COUNT, _COUNT, _INT], 3),
    "embedding_sum_backward": ([_COUNT, _COUNT, _COUNT, _COUNT], 3),
}


class TrainingLibrary:
    """The native passes, run on a number of threads of their own; ``isa`` as in ``load_build``."""

    def __init__(self, threads: int, isa: str | None = None) -> None:
        self.library = load_build(isa, TRAINING)
        self.library.training_open.restype = _HANDLE
        self.library.training_close.argtypes = [_HANDLE]
        self.library.training_close.restype = None
        for name, (arguments, arrays) in _FUNCTIONS.items():
            function = getattr(self.library, name)
            function.argtypes = [_HANDLE, *arguments, *[_HANDLE] * arrays]
            function.restype = _INT
        self.lanes = int(self.library.training_lanes())
        self.pool = self.library.training_open(threads)
        if not self.pool:
            raise NativeBuildError(
                f"{threads} threads for training cannot be had: set OMP_NUM_THREADS lower"
            )
        self._turn = threading.Lock()  # the pool does one thing at a time
        self.close = weakref.finalize(self, _close, self.library, self.pool, os.getpid())
        self.close.atexit = False  # another thread may be in a pass still

    def run(self, name: str, *arguments: object) -> None:
        """Call a function with sizes, numbers, and tensors for its arrays, None being null.

        Raises ``MemoryError`` where it lacks memory.
        """
        given = [x.data_ptr() if isinstance(x, Tensor) else x for x in arguments]
        with self._turn:
            failed = getattr(self.library, name)(self.pool, *given)
        if failed:
            raise MemoryError(f"there is no memory left for {name}: take a smaller batch")


def _close(library: ctypes.CDLL, pool: int, owner: int) -> None:
    if owner == os.getpid():  # a fork has none of the threads, and would wait for them
        library.training_close(pool)


@functools.cache
def _building(process: int) -> threading.Lock:
    """Give a process's lock, so that one builds and the others find it; a fork has its own."""
    return threading.Lock()


@functools.lru_cache(maxsize=2)  # whose threads end with it, where their number changes
def _open_library(threads: int, process: int) -> TrainingLibrary | None:
    try:
        return TrainingLibrary(threads)
    except NativeBuildError as error:
        log.warning("training and scoring go on without their native passes, slower: %s", error)
        return None


_DISABLED = ContextVar("_DISABLED", default=False)


@contextlib.contextmanager
def disabled() -> Iterator[None]:
    """Do as torch alone would inside the block, to compare."""
    token = _DISABLED.set(True)
    try:
        yield
    finally:
        _DISABLED.reset(token)


@assume_constant_result
def get_library() -> TrainingLibrary | None:
    """Give the passes for as many threads as torch has, or None where they cannot be built."""
    if _DISABLED.get():
        return None
    with _building(os.getpid()):
        return _open_library(torch.get_num_threads(), os.getpid())


def is_available() -> bool:
    """Whether the passes are there."""
    return get_library() is not None


def require_library() -> TrainingLibrary:
    """Give the passes, for an operator that has been chosen because they are there."""
    those = get_library()
    if those is None:
        raise NativeBuildError("the native passes cannot be built here")
    return those


def supports(x: Tensor, *dtypes: torch.dtype) -> bool:
    """Whether the passes are there and take features of ``x``, on a CPU, in whole vectors."""
    if x.device.type != "cpu" or x.dtype not in dtypes or x.numel() == 0:
        return False
    return is_available() and x.shape[-1] % require_library().lanes == 0
