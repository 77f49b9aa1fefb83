"""Whether a device runs the kernels for training, asked without importing Triton."""

from __future__ import annotations

from importlib.util import find_spec

import torch

MAX_FEATURES = 1024  # of a position, which one program of residual.py's holds whole


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def has_kernels(device: torch.device) -> bool:
    """Say whether it is an NVIDIA device of capability 8.0 or more, with Triton installed."""
    nvidia = device.type == "cuda" and torch.version.hip is None
    return (
        nvidia
        and torch.cuda.get_device_capability(device) >= (8, 0)
        and find_spec("triton") is not None
    )
