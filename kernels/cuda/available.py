"""Check for devices that can run the Triton training kernels, without importing Triton."""

from __future__ import annotations

import functools
import logging
import os
import shutil
from importlib.util import find_spec

import torch

MAX_FEATURES = 1024  # one program of residual_kernels.py holds all features of a position
MAX_HEAD_SIZE = 64  # one program of attention_kernels.py holds all features of a head
PROGRAMS = 528  # programs that share a long sum: 4 per multiprocessor of an H100

log = logging.getLogger("scanline.kernels")


@functools.cache
def triton_available(device: torch.device) -> bool:
    """Return True if the device is an NVIDIA GPU of capability 8.0 or higher and Triton works.

    Triton needs a C compiler. If none is installed, log a warning once and return False.
    """
    if device.type != "cuda" or torch.version.hip is not None or find_spec("triton") is None:
        return False
    if torch.cuda.get_device_capability(device) < (8, 0):
        return False
    if os.environ.get("CC") or any(map(shutil.which, ("gcc", "clang", "cc"))):
        return True
    log.warning(
        "Triton needs a C compiler (`apt-get install gcc python3-dev`): training and evaluation "
        "run without its kernels, which is slower"
    )
    return False
