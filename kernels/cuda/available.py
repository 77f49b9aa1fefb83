"""Whether a device runs the kernels for training, asked without importing Triton."""

from __future__ import annotations

import functools
import logging
import os
import shutil
from importlib.util import find_spec

import torch

from scanline.kernels.custom_op import assume_constant_result

MAX_FEATURES = 1024  # of a position, which one program of residual.py's holds whole
MAX_HEAD_SIZE = 64  # one program of attention_kernels.py holds all features of a head
PROGRAMS = 528  # that share a long sum: 4 for each of an H100's multiprocessors

log = logging.getLogger("scanline.kernels")


@assume_constant_result
def triton_available(device: torch.device) -> bool:
    """Say whether it is an NVIDIA device of capability 8.0 or more, and Triton works here.

    Triton needs a C compiler; where there is none, a warning says so once.
    """
    return _asked(device)


@functools.cache
def _asked(device: torch.device) -> bool:
    if device.type != "cuda" or torch.version.hip is not None or find_spec("triton") is None:
        return False
    if torch.cuda.get_device_capability(device) < (8, 0):
        return False
    if os.environ.get("CC") or any(map(shutil.which, ("gcc", "clang", "cc"))):
        return True
    log.warning(
        "training and evaluation go on without Triton's kernels, slower: they need a C compiler "
        "(`apt-get install gcc python3-dev`)"
    )
    return False
