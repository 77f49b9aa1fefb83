"""Tests of the wheel and the source archive."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from PIL import Image

from scanline.kernels.native.build import DECODER, TRAINING, load_build, prebuilt_name
from scanline.kernels.native.cpu import cpu_isas, machine_isas
from scanline.service import __version__
from tests.conftest import ROOT

FOLDERS = ("kernels", "model", "service", "tests", "weights")
CACHES = ("__pycache__", "*.pyc")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the project, because building writes next to the sources."""
    folder = tmp_path_factory.mktemp("source")
    for path in ROOT.iterdir():
        if path.name in (*FOLDERS, ".ci", "docs"):
            shutil.copytree(path, folder / path.name, ignore=shutil.ignore_patterns(*CACHES))
        elif path.is_file() and path.name != ".git":
            shutil.copy(path, folder)
    return folder


def run(*command: object, cwd: Path, **environment: str) -> str:
    """Run a command that must succeed without errors, and return its output."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=clean | environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "warning" not in done.stdout.lower(), done.stdout
    return done.stdout


PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")


def page_in(service: Path) -> set[str]:
    """Return the files of the page below a folder."""
    static = service / "web" / "static"
    return {str(path.relative_to(static)) for path in static.rglob("*.*")}


@pytest.mark.slow
def test_the_wheel_works_next_to_modules_with_common_names(
    source: Path, tmp_path: Path, cache_folder: Path
) -> None:
    builds = {*cache_folder.iterdir()}
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--verbose"]
    run(*PIP, "wheel", ".", *options, "--wheel-dir", tmp_path, cwd=source)
    (wheel,) = tmp_path.glob("*.whl")
    installed, elsewhere = tmp_path / "installed", tmp_path / "elsewhere"
    target = ["--no-deps", "--no-index", "--no-warn-script-location", "--target", installed]
    run(*PIP, "install", *target, wheel, cwd=tmp_path)
    (elsewhere / "kernels").mkdir(parents=True)
    for name in ("model.py", "service.py", "kernels/__init__.py"):
        (elsewhere / name).write_text("raise ImportError('user else wrote this')\n")
    settings = {"PYTHONPATH": str(installed), "SCANLINE_CACHE": str(cache_folder)}
    command = [sys.executable, "-m", "scanline.service", "sample", "seven.png"]
    options = ["-n", "1", "--model", "mnist", "--label", "7", "--scale", "1"]
    run(*command, *options, cwd=elsewhere, **settings)
    with Image.open(elsewhere / "seven.png") as picture:
        assert picture.size == (28, 28)
    assert {*cache_folder.iterdir()} == builds, "its native code is not the checkout's"
    where = "import scanline.service.app as app; print(app.__file__)"
    said = run(sys.executable, "-c", where, cwd=elsewhere, **settings)
    assert said == f"{installed / 'scanline' / 'service' / 'app.py'}\n"
    assert page_in(installed / "scanline" / "service") == page_in(ROOT / "service")
    for folder in ("kernels", "model", "service"):
        assert (installed / "scanline" / folder / "py.typed").exists()
    cards = {path.stem for path in (installed / "scanline" / "weights").glob("*.md")}
    assert {path.stem for path in (ROOT / "weights").glob("*.safetensors")} <= cards


def test_a_source_archive_is_complete(source: Path, tmp_path: Path) -> None:
    build = f"from setuptools import build_meta as b; b.build_sdist({str(tmp_path)!r})"
    run(sys.executable, "-c", build, cwd=source)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    listed = {
        str(path.relative_to(source))
        for folder in (*FOLDERS, ".ci", "docs")
        for path in (source / folder).rglob("*")
        if path.is_file()
    }
    assert listed - names == set()
    assert {"LICENSE", "README.md", "docs/architecture.md", "CONTRIBUTING.md", "Makefile"} <= names
    assert {"setup.py", "requirements.lock", "CITATION.cff"} <= names


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="wheels with native code are for Linux")
def test_a_wheel_with_native_code_needs_no_compiler(source: Path, tmp_path: Path) -> None:
    """The fake compiler returns the checkout's build, instead of compiling for minutes."""
    compiler, machine = tmp_path / "fake-c++", platform.machine()
    compiler.write_text(
        f"""#!/bin/sh
case "$*" in
    *-dumpmachine*) exec echo {machine}-linux-gnu;;
    */training.cpp*) built='{load_build(source=TRAINING)._name}';;
    *) built='{load_build()._name}';;
esac
while [ "$1" != -o ]; do shift; done
exec cp "$built" "$2"
"""
    )
    compiler.chmod(0o755)
    folder = "scanline/kernels/native/prebuilt"
    platform_name = f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    left = source / "build" / f"lib.{platform_name}" / folder  # by another build
    left.mkdir(parents=True)
    (left / "decoder-portable-0.so").touch()
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", tmp_path]
    build = {"SCANLINE_PREBUILT": machine, "CXX": str(compiler)}
    run(*PIP, "wheel", ".", *options, cwd=source, **build)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"scanline_rnn-{__version__}-py3-none-linux_{machine}.whl"
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as opened:
        names = {name for name in opened.namelist() if name.endswith(".so")}
        opened.extractall(installed)
    sources = (DECODER, TRAINING)
    assert names == {
        f"{folder}/{prebuilt_name(isa, path)}" for isa in machine_isas() for path in sources
    }
    assert {f"{folder}/{path.name}" for path in left.iterdir()} == names
    program = "from scanline.model import draw; draw('mnist', 1)"
    nothing = {"PATH": str(tmp_path), "SCANLINE_CACHE": str(tmp_path / "cache"), "CXX": ""}
    program += "; from scanline.kernels.native.build import load_build; print(load_build()._name)"
    said = run(sys.executable, "-c", program, cwd=tmp_path, PYTHONPATH=str(installed), **nothing)
    assert said == f"{installed / folder / prebuilt_name(cpu_isas()[0], DECODER)}\n"
    assert not (tmp_path / "cache").exists()


def locked() -> dict[str, list[str]]:
    """Return the versions of each package that the lock file names; it may name one per Python."""
    versions: dict[str, list[str]] = {}
    lines = (ROOT / "requirements.lock").read_text().replace("\\\n", " ").splitlines()
    for line in (line for line in lines if not line.startswith("#")):
        requirement, *hashes = line.split(" --hash=sha256:")
        parsed = Requirement(requirement)
        assert bool(hashes) == (parsed.name != "torch"), parsed.name
        assert all(re.fullmatch(r"[0-9a-f]{64}\s*", one) for one in hashes)
        (version,) = parsed.specifier
        assert version.operator == "=="
        versions.setdefault(parsed.name, []).append(version.version)
    return versions


def test_the_lock_file_covers_the_requirements() -> None:
    """Every version in it is allowed by pyproject.toml."""
    project, versions = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"], locked()
    extras = project["optional-dependencies"]
    for text in (*project["dependencies"], *extras["cluster"], *extras["gpu"], *extras["otel"]):
        wanted = Requirement(text)
        assert versions[canonicalize_name(wanted.name)], wanted
        for version in versions[canonicalize_name(wanted.name)]:
            assert version in wanted.specifier, f"{wanted} is locked at {version}: make lock"


def test_versions_agree() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == __version__


def test_every_package_is_installed() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    there = {
        ".".join(("scanline", *path.parent.relative_to(ROOT).parts))
        for folder in ("kernels", "model", "service")
        for path in (ROOT / folder).rglob("*.py")
    }
    assert set(listed) == there | {"scanline.weights"}
    for name in there:
        assert (ROOT.joinpath(*name.split(".")[1:]) / "__init__.py").exists(), name
