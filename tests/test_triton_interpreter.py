"""Run the tests of the Triton kernels in Triton's interpreter, in a process of their own.

Triton reads ``TRITON_INTERPRET`` as each kernel is declared, so one process cannot both interpret
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

FOLDER = ROOT / "tests" / "triton"
FILES = sorted(
    {f"triton/{path.name}" for path in FOLDER.glob("test_*.py")} - {"triton/test_decoder_on_gpu.py"}
)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.skipif("TRITON_INTERPRET" in os.environ, reason="this process interprets already")
@pytest.mark.slow
@pytest.mark.timeout(1500)  # whole files, where any other test is one of many
def test_the_kernels_in_the_interpreter(pytestconfig: pytest.Config) -> None:
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            *(["--broad"] if pytestconfig.getoption("--broad") else []),
            "-m",
            "not gpu",
            "-p",
            "no:cacheprovider",
            "-p",
            "pytest_timeout",
            *(f"tests/{file}" for file in [*FILES, "engine/test_on_triton.py"]),
        ],
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"[1-9]\d* passed", ran.stdout), ran.stdout
    assert "skipped" not in ran.stdout, ran.stdout
