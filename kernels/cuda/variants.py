"""Descriptions of kernels that the compile gate can compile without a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class KernelVariant:
    """A Triton kernel with the types, constants and options of one of its launches.

    Attributes:
        signature: Type of every argument that is not in ``constants``: ``*fp32``, ``i64``, … A
            suffix ``:16`` means that the launched value is a multiple of 16 (``*bf16:16``), for
            which Triton generates specialised code.
        constants: The constexprs, pointers that are None, and integers that are 1.
        maxnreg: Maximum number of registers per thread. Without it the compiler may spill a few
            registers to fit one more block on a multiprocessor.
    """

    name: str
    kernel: Any  # triton's JITFunction, which has no type stubs
    signature: dict[str, str]
    constants: dict[str, object]
    num_warps: int
    num_stages: int
    maxnreg: int | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """Everything but the name: equal for variants that compile to the same code."""
        return (
            self.kernel.__name__, self.num_warps, self.num_stages, self.maxnreg,
            *sorted(self.signature.items()),
            *sorted((name, repr(value)) for name, value in self.constants.items()),
        )  # fmt: skip


@dataclass(frozen=True)
class CudaSource:
    """CUDA C++ source with the macros that NVRTC compiles it with.

    Attributes:
        shared: Shared memory of a block, in bytes.
        stack: Bytes of local device memory that a thread may use.
    """

    name: str
    text: str
    defines: Mapping[str, int | float]
    shared: int
    stack: int
