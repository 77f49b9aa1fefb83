"""The C++ library for training on a CPU, with as many threads as torch uses.

The other modules of this package define differentiable functions on it.
Each computes in one pass over memory what torch does in several, with the same result up to
rounding. Sums are float32 whatever the tensors' dtype, and do not depend on the number of threads
or on other images.
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

from scanline.kernels.native.build import TRAINING, NativeBuildError, load_build

log = logging.getLogger("scanline.native")

_HANDLE, _COUNT, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
# Scalar arguments of each function in training.cpp after the pool, and number of arrays after
# those.
_FUNCTIONS: dict[str, tuple[list[type], int]] = {
    "attention_forward": ([_HANDLE, _INT], 4),
    "attention_backward": ([_HANDLE, _INT], 6),
    "residual_forward": ([_HANDLE, _INT], 8),
    "residual_backward": ([_HANDLE, _INT], 9),
    "bias_gelu_forward": ([_COUNT, _COUNT, _COUNT, _INT], 3),
    "bias_gelu_backward": ([_COUNT, _COUNT, _COUNT, _INT], 5),
    "embedding_sum_backward": ([_COUNT, _COUNT, _COUNT, _COUNT], 3),
}


class TrainingLibrary:
    """The library with its own thread pool.

    Args:
        threads: Number of threads.
        isa: ISA of the build; the CPU's best by default.

    Raises:
        NativeBuildError: The library cannot be built or the threads cannot be started.
    """

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
                f"{threads} training threads cannot be started: set a lower OMP_NUM_THREADS"
            )
        self._lock = threading.Lock()  # the pool runs one function at a time
        self.close = weakref.finalize(self, _close, self.library, self.pool, os.getpid())
        self.close.atexit = False  # another thread may still be running a function

    def run(self, name: str, *arguments: object) -> None:
        """Call a C function, passing tensors as pointers and None as null.

        Raises ``MemoryError`` if memory is short.
        """
        values = [x.data_ptr() if isinstance(x, Tensor) else x for x in arguments]
        with self._lock:
            failed = getattr(self.library, name)(self.pool, *values)
        if failed:
            raise MemoryError(f"not enough memory for {name}: use a smaller batch")


def _close(library: ctypes.CDLL, pool: int, owner: int) -> None:
    if owner == os.getpid():  # a forked process has no such threads and would wait forever
        library.training_close(pool)


@functools.cache
def _build_lock(process: int) -> threading.Lock:
    """Return the build lock of a process. A fork has its own, because it may inherit a held one."""
    return threading.Lock()


@functools.lru_cache(maxsize=2)  # evicted libraries end their threads
def _open_library(threads: int, process: int) -> TrainingLibrary | None:
    try:
        return TrainingLibrary(threads)
    except NativeBuildError as error:
        log.warning("training and scoring use slower PyTorch code without C++: %s", error)
        return None


_DISABLED = ContextVar("_DISABLED", default=False)


@contextlib.contextmanager
def disabled() -> Iterator[None]:
    """Use plain PyTorch inside the block, for comparisons."""
    token = _DISABLED.set(True)
    try:
        yield
    finally:
        _DISABLED.reset(token)


def get_library() -> TrainingLibrary | None:
    """Return the library for torch's number of threads; None if disabled or not buildable."""
    if _DISABLED.get():
        return None
    with _build_lock(os.getpid()):
        return _open_library(torch.get_num_threads(), os.getpid())


def require_library() -> TrainingLibrary:
    """Return the library; raise ``NativeBuildError`` if it cannot be used."""
    library = get_library()
    if library is None:
        raise NativeBuildError("the C++ training library cannot be built here")
    return library


def supports(x: Tensor, *dtypes: torch.dtype) -> bool:
    """Return True if the library can be used for ``x``.

    It must be on the CPU, have one of the dtypes, and a last dimension that is a multiple of the
    vector size.
    """
    if x.device.type != "cpu" or x.dtype not in dtypes or x.numel() == 0:
        return False
    library = get_library()
    return library is not None and x.shape[-1] % library.lanes == 0
