"""``device_check.sh``: what it runs needs neither the service nor what the service imports."""

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

SCRIPT = ROOT / "tests" / "device_check.sh"
FOLDERS = re.findall(r" tests/([\w/]+)\b(?!\.)", SCRIPT.read_text())
RUN = [path for name in FOLDERS for path in sorted((ROOT / "tests" / name).glob("*.py"))]
ABSENT = (
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


def test_it_runs_every_file_with_tests_for_a_device() -> None:
    """Those marked, and those that try every backend, but not the engine's."""
    sources = {path: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    marked = {
        path
        for path, source in sources.items()
        if re.search(r"mark\.gpu|pytestmark = gpu|import backend as backend", source)
        and not re.search(r"from (scanline\.service|tests\.(service_fixtures|engine))", source)
    }
    assert marked - {Path(__file__)} <= set(RUN)
    assert {path.name for path in RUN} >= {
        "test_slots.py",
        "test_decoder_on_gpu.py",
        "test_attention.py",
    }


def test_nothing_that_it_runs_imports_the_service() -> None:
    modules = [
        *(".".join(path.relative_to(ROOT).with_suffix("").parts) for path in RUN),
        "scanline.model.bench.cuda", "scanline.model.bench.cuda_launch_modes",
        "scanline.model.bench.cuda_attention",
    ]  # fmt: skip
    code = f"import sys; sys.modules |= dict.fromkeys({ABSENT}); import {', '.join(modules)}"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT, env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr


def test_a_stage_that_is_not_there_is_refused() -> None:
    ran = subprocess.run(
        ["bash", str(SCRIPT)],
        cwd=ROOT, env=os.environ | {"STAGES": "tests speed"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 2
    assert ran.stdout == "STAGES may name tests, bench and attention, not speed\n"


@pytest.mark.skipif(torch.cuda.is_available(), reason="it would run all there is")
def test_without_a_device_it_collects_its_tests_and_says_so(tmp_path: Path) -> None:
    ran = subprocess.run(
        ["bash", str(SCRIPT), str(tmp_path)],
        cwd=ROOT, env=os.environ | {"PYTHON": sys.executable},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 1
    assert "there is no CUDA device" in ran.stdout
    assert re.search(r"[1-9]\d*/\d+ tests collected", ran.stdout), ran.stdout
    assert "collected: exit 0" in ran.stdout
    (log,) = tmp_path.iterdir()  # one file to bring home
    assert "versions| there is no CUDA device" in log.read_text()
    assert re.search(r"^collected\| .*tests collected", log.read_text(), re.MULTILINE)
