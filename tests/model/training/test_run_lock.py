"""Tests of the lock on a run's folder."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from scanline.model.training.run_lock import run_lock


def test_folder_is_locked_by_one_run(tmp_path: Path) -> None:
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
            pass  # still locked
    assert list(folder.iterdir()) == []
    with run_lock(folder):
        pass


def test_lock_file_deleted_by_owner_is_not_acquired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def late(lock: Any, how: int) -> None:
        (tmp_path / ".lock").unlink()
        flock(lock, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(ValueError, match="another run is using"), run_lock(tmp_path):
        pass


def test_file_system_without_locks_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(lock: Any, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with run_lock(tmp_path):
        pass


def test_temporary_files_of_killed_run_are_deleted(tmp_path: Path) -> None:
    left = [".training.pt.0123abcd", ".run.safetensors.00000000", ".curve.png.0a1b2c3d"]
    kept = ["training.pt", "run.safetensors", ".notes.0123abcd", ".training.pt.tmp"]
    for name in (*left, *kept):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    fresh = tmp_path / ".run.safetensors.12345678"  # still being written
    fresh.touch()
    with run_lock(tmp_path):
        there = {path.name for path in tmp_path.iterdir()} - {".lock"}
    assert there == {*kept, fresh.name}
