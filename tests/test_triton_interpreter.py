"""Tests of the Triton kernels in Triton's interpreter, run in a separate process.

Triton reads ``TRITON_INTERPRET`` when a kernel is declared, so one process cannot both interpret
and compile.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT

FILES = [
    *sorted(set((ROOT / "tests" / "triton").glob("test_*.py"))),
    ROOT / "tests" / "service" / "engine" / "test_triton_engine.py",
]
GPU_ONLY = {"test_decoder_on_gpu.py"}


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.skipif("TRITON_INTERPRET" in os.environ, reason="this process interprets already")
@pytest.mark.slow
@pytest.mark.timeout(1500)  # it runs whole files
def test_triton_kernels_in_the_interpreter(pytestconfig: pytest.Config) -> None:
    command = [
        sys.executable, "-m", "pytest", *(["--broad"] if pytestconfig.getoption("--broad") else []),
        "-m", "not gpu", "-p", "no:cacheprovider", "-p", "pytest_timeout",
        *(str(path.relative_to(ROOT)) for path in FILES if path.name not in GPU_ONLY),
    ]  # fmt: skip
    result = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"[1-9]\d* passed", result.stdout), result.stdout
    assert "skipped" not in result.stdout, result.stdout
