"""One run at a time in a folder, which holds no more than it must."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from scanline.model.training.run_lock import run_lock


def test_a_folder_is_one_run_s(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "mine"
    with run_lock(folder):
        refused = pytest.raises(
            ValueError, match=r"another run is using .*mine: wait until it ends, or"
        )
        with refused, run_lock(folder):
            pass
        with run_lock(tmp_path / "other"):
            pass
        with pytest.raises(ValueError, match="another run is using"), run_lock(folder):
            pass  # though others were refused
    assert list(folder.iterdir()) == []
    with run_lock(folder):
        pass


def test_a_lock_that_its_owner_has_just_taken_away_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def late(lock: Any, how: int) -> None:
        (tmp_path / ".lock").unlink()
        flock(lock, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(ValueError, match="another run is using"), run_lock(tmp_path):
        pass


def test_a_file_system_without_locks_is_no_reason_not_to_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(lock: Any, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with run_lock(tmp_path):
        pass


def test_what_a_killed_run_left_half_written_is_taken_away(tmp_path: Path) -> None:
    left = [".training.pt.0123abcd", ".run.safetensors.00000000", ".curve.png.0a1b2c3d"]
    kept = ["training.pt", "run.safetensors", ".notes.0123abcd", ".training.pt.tmp"]
    for name in (*left, *kept):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    fresh = tmp_path / ".run.safetensors.12345678"  # as of figures that are noted in it now
    fresh.touch()
    with run_lock(tmp_path):
        there = {path.name for path in tmp_path.iterdir()} - {".lock"}
    assert there == {*kept, fresh.name}
