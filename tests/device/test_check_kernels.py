"""Tests of ``check_kernels.sh``, which must run without the service and its dependencies."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import ROOT

SCRIPT = ROOT / "tests" / "device" / "check_kernels.sh"
PATHS = [ROOT / path for path in re.findall(r" (tests/[\w/]+(?:\.py)?)(?=\s)", SCRIPT.read_text())]
FILES = [
    file for path in PATHS for file in ([path] if path.is_file() else sorted(path.glob("*.py")))
]
UNAVAILABLE = (
    "fastapi",
    "httpx",
    "pydantic",
    "pydantic_settings",
    "typer",
    "uvicorn",
    "scanline.service",
)

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)


def test_script_runs_every_file_with_gpu_tests() -> None:
    """The files with GPU marks or with tests of all backends, except those of the engine."""
    sources = {path: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    gpu_files = {
        path
        for path, source in sources.items()
        if re.search(r"mark\.gpu|pytestmark = gpu|import backend as backend", source)
        and not re.search(r"from (scanline\.service|tests\.service)", source)
    }
    assert gpu_files - {Path(__file__)} <= set(FILES)
    names = {path.name for path in FILES}
    assert names >= {"test_slots.py", "test_decoder_on_gpu.py", "test_attention.py"}


def test_nothing_in_the_script_imports_the_service() -> None:
    modules = [
        *(".".join(path.relative_to(ROOT).with_suffix("").parts) for path in FILES),
        "scanline.model.bench.cuda", "scanline.model.bench.cuda_launch_modes",
    ]  # fmt: skip
    code = f"import sys; sys.modules |= dict.fromkeys({UNAVAILABLE}); import {', '.join(modules)}"
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT, env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr


def test_unknown_stage_is_rejected() -> None:
    result = subprocess.run(
        ["bash", str(SCRIPT)],
        cwd=ROOT, env=os.environ | {"STAGES": "tests speed"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 2
    assert result.stdout == "unknown stage in STAGES: speed (use tests, bench)\n"


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="would run the whole check")
def test_without_gpu_the_script_only_collects_tests(tmp_path: Path) -> None:
    result = subprocess.run(
        ["bash", str(SCRIPT), str(tmp_path)],
        cwd=ROOT, env=os.environ | {"PYTHON": sys.executable},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 1
    assert "no CUDA device" in result.stdout
    assert re.search(r"[1-9]\d*/\d+ tests collected", result.stdout), result.stdout
    assert "collected: exit 0" in result.stdout
    (log,) = tmp_path.iterdir()
    assert "versions| no CUDA device" in log.read_text()
    assert re.search(r"^collected\| .*tests collected", log.read_text(), re.MULTILINE)
