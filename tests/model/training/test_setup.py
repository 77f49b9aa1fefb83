"""Tests of the set-up of a run: folder and contradicting options."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from scanline.model.training.resume import weights_path
from scanline.model.training.setup import check_resume_options, choose_run_folder
from tests.conftest import tiny_config


def test_choose_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert choose_run_folder(None, "mnist", None, resume=False) == Path("runs/mnist")
    assert choose_run_folder(None, None, Path("my/cats"), resume=False) == Path("runs/cats")
    for images, out in ((Path(), None), (tmp_path, Path("here")), (Path("here"), Path("here"))):
        with pytest.raises(ValueError, match=r"lies in .*: choose another folder with --out"):
            choose_run_folder(out, None, images, resume=False)
    assert choose_run_folder(Path("here"), "mnist", None, resume=False) == Path("here")
    with pytest.raises(ValueError, match="no run to resume in here"):
        choose_run_folder(Path("here"), "mnist", None, resume=True)
    Path("here").mkdir()
    Path("here/training.pt").touch()
    assert choose_run_folder(Path("here"), "mnist", None, resume=True) == Path("here")
    with pytest.raises(ValueError, match="add --resume"):
        choose_run_folder(Path("here"), "mnist", None, resume=False)


def test_weights_are_named_after_folder(tmp_path: Path) -> None:
    """Names that are not UTF-8 are rejected and leading dots removed: such files are not served."""
    with pytest.raises(ValueError, match=r"not UTF-8.*: choose another folder with --out"):
        choose_run_folder(Path(os.fsdecode(b"runs/caf\xe9")), "mnist", None, resume=False)
    assert weights_path(tmp_path / ".hidden", {}) == tmp_path / ".hidden" / "hidden.safetensors"
    assert weights_path(Path("/"), {}).name == "model.safetensors"


def test_weights_without_state_are_not_overwritten(tmp_path: Path) -> None:
    """A user deleted ``training.pt``."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.safetensors").touch()
    with pytest.raises(
        ValueError, match="no run to resume: choose another folder with --out"
    ) as refused:
        choose_run_folder(folder, "mnist", None, resume=False)
    assert f"--from {folder / 'run.safetensors'}" in str(refused.value)
    with pytest.raises(ValueError, match="no run to resume"):
        choose_run_folder(folder, "mnist", None, resume=True)


@pytest.mark.parametrize("name", ["file", "file/run"])
def test_run_folder_must_not_be_a_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="lies in one: choose another folder with --out"):
        choose_run_folder(tmp_path / name, "mnist", None, resume=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((None, False, Path("a.safetensors")), "leave one of them out"),
        ((6, False, None), "have 5 pixels a side: leave out --size"),
        ((None, True, None), "leave out --grey"),
        ((None, False, None, 5, 3), "holds out 3 images: leave out --hold-out"),
    ],
)
def test_options_that_contradict_resumed_run_are_rejected(
    options: tuple[Any, ...], message: str
) -> None:
    resumed = tiny_config(channels=3)
    check_resume_options(resumed, 5, False, None)
    check_resume_options(tiny_config(), None, True, None)
    for hold_out, held_out in ((None, 3), (3, None), (3, 3)):
        check_resume_options(resumed, None, False, None, hold_out, held_out)
    with pytest.raises(ValueError, match=message):
        check_resume_options(resumed, *options)
