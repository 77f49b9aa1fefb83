"""Fixtures of the Triton tests, which run in Triton's interpreter or on a GPU (``-m gpu``).

Triton reads ``TRITON_INTERPRET`` when it is imported, so another process runs these files in the
interpreter (``tests/test_triton_interpreter.py``). In processes without the interpreter and without
a GPU, the files are not collected.
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
def target(request: pytest.FixtureRequest) -> Target:
    """Return each target that this process can test, and skip the others."""
    result: Target = request.param
    if (result.device == "cpu") != INTERPRETED:
        pytest.skip("a process tests either the interpreter or a GPU")
    return result
