"""What a kernel module tells the compile gate of each kernel it launches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class KernelVariant:
    """One kernel exactly as it is launched, so that it can be compiled without a GPU.

    ``signature`` gives the type of every argument that is not in ``constants``: ``*fp32``, ``i64``,
    …, with ``:16`` behind it where the launched value is a multiple of 16 (``*bf16:16``), on which
    Triton specialises. ``constants`` holds the constexprs, pointers that are None, and integers
    that are 1. ``maxnreg`` bounds the registers a thread; without it the compiler may spill a few
    to fit one more block on a multiprocessor.
    """

    name: str
    kernel: Any  # triton's JITFunction, which has no type stubs
    signature: dict[str, str]
    constants: dict[str, object]
    num_warps: int
    num_stages: int
    maxnreg: int | None = None


@dataclass(frozen=True)
class CudaSource:
    """CUDA C++ exactly as NVRTC compiles it where it runs.

    ``shared`` is its blocks' shared memory and ``stack`` how much of a thread's may lie in device
    memory, both in bytes.
    """

    name: str
    text: str
    defines: Mapping[str, int | float]
    shared: int
    stack: int
