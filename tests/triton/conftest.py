"""Where these tests run: in Triton's interpreter, or on a CUDA device (``pytest -m gpu``).

Triton reads ``TRITON_INTERPRET`` as it is imported, so another process runs these
files for the interpreter (``tests/test_triton_interpreter.py``); other processes without a device
leave them out.
"""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

from tests.triton.targets import TARGETS, Target

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

if importlib.util.find_spec("triton") is None or not (INTERPRETED or torch.cuda.is_available()):
    collect_ignore_glob = ["test_*.py"]
elif INTERPRETED:
    from tests.triton.fast_interpreter import patch_interpreter

    patch_interpreter()


@pytest.fixture(params=TARGETS)
def place(request: pytest.FixtureRequest) -> Target:
    """Give each place that this process can test; skips the others."""
    found: Target = request.param
    if (found.device == "cpu") != INTERPRETED:
        pytest.skip("one process tests the interpreter or a device")
    return found
