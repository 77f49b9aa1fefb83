"""Programmatic dependent launch: a kernel is set up while the one before it still runs.

A step of one image is some forty small kernels in a row, and between two of them the device waits
for a launch longer than many of them take. From compute capability 9.0 on, each may let the next
one's programs come onto the device early, where they wait until all that it wrote can be seen
(CUDA programming guide, section "Programmatic Dependent Launch and Synchronization").
"""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import ctypes

import triton
import triton.language as tl

CAPABILITY = (9, 0)
DRIVER = 12_030  # CUDA 12.3: the first whose graphs keep such launches


@triton.jit
def wait_for_previous_kernel() -> None:
    """Wait for the kernel before; comes before all that reads or writes what another writes.

    Only then may the kernel behind be set up, so that no more than two are ever under way, and the
    one before the last has ended.
    """
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()


def supports_dependent_launch(capability: tuple[int, int]) -> bool:
    """Say whether a device of that compute capability, with the driver here, can do it."""
    if capability < CAPABILITY:
        return False
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:  # as on Windows
        return False
    version = ctypes.c_int()
    found: int = cuda.cuDriverGetVersion(ctypes.byref(version))
    return found == 0 and version.value >= DRIVER
