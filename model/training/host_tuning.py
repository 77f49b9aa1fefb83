"""Tuning of the host for training: precision and malloc."""

from __future__ import annotations

import contextlib
import ctypes

import torch

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc malloc.h


def bf16_is_fast(device: torch.device) -> bool:
    """Return True if a device multiplies bfloat16 faster than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.backends.mkldnn.is_available() and torch.cpu._is_avx512_bf16_supported())


def keep_freed_memory() -> None:
    """Make glibc keep freed blocks, for the rest of the process.

    Fresh pages for all activations cost 20 % of a step.
    """
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        libc = ctypes.CDLL("libc.so.6")
        # glibc before 2.35 accepts at most the second value. If it rejects both, setting the trim
        # threshold alone would only stop malloc from raising its mmap threshold by itself.
        if any(libc.mallopt(_M_MMAP_THRESHOLD, limit) for limit in (2**30, 2**25)):
            libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
