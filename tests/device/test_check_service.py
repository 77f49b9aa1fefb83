"""Tests of ``check_service.sh`` on the CPU, with few images."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import cast

import pytest

from tests.conftest import ROOT
from tests.device.check_service import CHECKS, Sizes, check_events, in_batches, run_checks
from tests.device.served import Served
from tests.sse_client import parse_sse

SCRIPT = ROOT / "tests" / "device" / "check_service.sh"
NO_SERVER = cast(Served, None)


def run_script(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the script without the installed package on the path."""
    variables = os.environ | {"PYTHON": sys.executable} | environment
    return subprocess.run(
        ["bash", SCRIPT, *map(str, arguments)],
        env=variables, capture_output=True, text=True, check=False,
    )  # fmt: skip


def make_wheel(folder: Path, name: str, module: str) -> None:
    """Write a wheel with a single module."""
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", module)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        tag = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{info}/WHEEL", tag)
        wheel.writestr(f"{info}/RECORD", "")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_service_passes_all_checks(tmp_path: Path) -> None:
    """With a wheel that prints when Python starts, which shows that wheels are installed."""
    make_wheel(tmp_path, "sitecustomize", "print('wheels on the path', flush=True)")
    sizes = "--samples 4 --neighbours 20 --images 20 --streams 2 --stream-images 1 --slots 16"
    done = run_script(tmp_path, "--backend", "native", *sizes.split(), DEADLINE="500")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "wheels on the path" in done.stdout
    assert re.findall(r"^(\w+): ok: ", done.stdout, re.MULTILINE) == [*CHECKS]
    assert "all checks succeeded" in done.stdout
    assert "server| " in done.stdout
    assert " scanline.access: " not in done.stdout


def test_a_folder_of_wheels_is_required() -> None:
    done = run_script()
    assert done.returncode == 2
    assert done.stdout.startswith("usage: tests/device/check_service.sh WHEELS")


def test_a_failed_check_does_not_prevent_the_next_one(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(served: Served, sizes: Sizes) -> str:
        raise ConnectionError("the server ended")

    checks = {"first": fail, "second": lambda served, sizes: f"{sizes.images} images"}
    assert not run_checks(NO_SERVER, Sizes(), checks)
    first, second, summary = capsys.readouterr().out.splitlines()
    assert first.startswith("first: FAILED: ConnectionError: the server ended (")
    assert second.startswith("second: ok: 10000 images (")
    assert summary == "failed: first"


def test_requests_together_draw_each_image_once() -> None:
    assert in_batches(600) == [(0, 250), (250, 250), (500, 100)]


STREAM = """event: image
data: {"index": 0, "png": "%s"}

event: completed
data: {}

"""
ONE_PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)
PIXELS = 'event: pixels\ndata: {"updates": [{"index": 0, "position": 0, "values": [%d]}]}\n\n'


@pytest.mark.parametrize("text", ["", PIXELS % 9], ids=["no pixels", "another value"])
def test_a_stream_whose_pixels_are_not_its_png_fails(text: str) -> None:
    check_events(parse_sse((PIXELS % 0 + STREAM % ONE_PIXEL).encode()), "mnist", 1)
    with pytest.raises(AssertionError):
        check_events(parse_sse((text + STREAM % ONE_PIXEL).encode()), "mnist", 1)
