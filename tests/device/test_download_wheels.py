"""Tests of the choice of wheels, without a network."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.device import download_wheels
from tests.device.download_wheels import PROJECT, pip_command, required_packages


def test_everything_is_required_except_torch_and_skipped_packages() -> None:
    packages = required_packages(PROJECT.read_text(), ["numpy"])
    names = {package.split(">")[0] for package in packages}
    assert names >= {"fastapi", "uvicorn[standard]", "pydantic-settings", "typer", "pillow"}
    assert not names & {"torch", "triton", "numpy"}


def test_unknown_packages_cannot_be_skipped() -> None:
    with pytest.raises(ValueError, match="not required by the project: numpi, scipy"):
        required_packages(PROJECT.read_text(), ["scipy", "numpy", "numpi", "triton"])


def test_only_wheels_for_the_other_python_are_downloaded() -> None:
    command = pip_command(["fastapi>=1", "tqdm"], "3.12", Path("wheels"))
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert "--only-binary=:all:" in command
    assert command[command.index("--python-version") + 1] == "3.12"
    assert command[-4:] == ["--dest", "wheels", "fastapi>=1", "tqdm"]


def test_wheels_are_not_added_to_a_folder_with_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fastapi-0.1-py3-none-any.whl").touch()
    monkeypatch.setattr(sys, "argv", ["download_wheels", str(tmp_path)])
    with pytest.raises(SystemExit, match="is not empty: two versions of a package"):
        download_wheels.main()
