"""Collection of the CUDA kernel tests, which need the Triton package and a C++ compiler."""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("triton") is None:
    collect_ignore_glob = ["test_*.py"]
