"""These tests need Triton's package, whose sizes and memory the kernel shares, and a compiler."""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("triton") is None:
    collect_ignore_glob = ["test_*.py"]
