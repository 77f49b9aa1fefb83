"""Where these tests run: in Triton's interpreter, or on a CUDA device (``pytest -m gpu``).

Triton reads ``TRITON_INTERPRET`` as it is imported, so ``tests/test_triton.py`` runs these files
for the interpreter in processes of their own; other processes without a device leave them out.
"""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

from tests.triton.places import PLACES, Place

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

if importlib.util.find_spec("triton") is None or not (INTERPRETED or torch.cuda.is_available()):
    collect_ignore_glob = ["test_*.py"]
elif INTERPRETED:
    from tests.triton.interpreter import patch_once

    patch_once()


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Place:
    """Give each place that this process can test; skips the others."""
    found: Place = request.param
    if (found.device == "cpu") != INTERPRETED:
        pytest.skip("one process tests the interpreter or a device")
    return found
