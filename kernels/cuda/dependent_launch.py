"""Programmatic dependent launch: a kernel starts while the previous one still runs.

A decode step of one image is about forty small kernels, and the launch gap between two of them is
longer than many of the kernels. From compute capability 9.0 on, a kernel may let the next kernel's
programs start early. They then wait until everything that the earlier kernel wrote is visible
(CUDA programming guide, section "Programmatic Dependent Launch and Synchronization").
"""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import ctypes

import triton
import triton.language as tl

CAPABILITY = (9, 0)
DRIVER = 12_030  # CUDA 12.3, the first version whose graphs support such launches


@triton.jit
def wait_for_previous_kernel() -> None:
    """Wait for the previous kernel, then let the next one start.

    Call it before any access to memory that another kernel writes. The next kernel may start only
    after the wait, so at most two kernels run at a time and all earlier ones have ended.
    """
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()


def supports_dependent_launch(capability: tuple[int, int]) -> bool:
    """Return True if a device of this compute capability and the installed driver support it."""
    if capability < CAPABILITY:
        return False
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:  # not Linux, or no driver
        return False
    version = ctypes.c_int()
    found: int = cuda.cuDriverGetVersion(ctypes.byref(version))
    return found == 0 and version.value >= DRIVER
