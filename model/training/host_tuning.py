"""What training asks of the machine that it runs on."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Iterator

import torch

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc malloc.h


def bf16_is_fast(device: torch.device) -> bool:
    """Whether a device multiplies bfloat16 faster than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.backends.mkldnn.is_available() and torch.cpu._is_avx512_bf16_supported())


def keep_freed_memory() -> None:
    """Ask glibc to keep freed blocks: fresh pages for every activation cost a fifth of a step."""
    with contextlib.suppress(OSError, AttributeError):  # another C library: nothing to ask
        libc = ctypes.CDLL("libc.so.6")
        # Before 2.35 it takes no more than the second; where neither is taken, to set the other
        # would only keep it from raising its own.
        if any(libc.mallopt(_M_MMAP_THRESHOLD, most) for most in (2**30, 2**25)):
            libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


@contextlib.contextmanager
def frozen_gc() -> Iterator[None]:
    """Freeze all live objects out of garbage collection inside the block.

    Walking all of torch's took a tenth of a step.
    """
    before = gc.get_freeze_count()
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not before:  # or what another left to itself would be looked through again
            gc.unfreeze()
