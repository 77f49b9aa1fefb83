"""Atomic file writes and folder locks."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from scanline.model.atomic_files import folder_lock, write_atomically
from tests.conftest import read_fifo


@pytest.mark.parametrize(("umask", "fresh"), [(0o022, 0o644), (0o077, 0o600)])
def test_existing_mode_is_kept_and_new_mode_follows_umask(
    tmp_path: Path, umask: int, fresh: int
) -> None:
    known = tmp_path / "known"
    known.touch()
    before = os.umask(umask)
    try:
        for mode in (0o600, 0o664):
            known.chmod(mode)
            write_atomically(known, b"again")
            assert stat.S_IMODE(known.stat().st_mode) == mode
        write_atomically(tmp_path / "new", b"new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == fresh
    assert (known.read_bytes(), (tmp_path / "new").read_bytes()) == (b"again", b"new")


@pytest.mark.parametrize("there", [True, False])
def test_symlink_is_kept_and_its_target_written(tmp_path: Path, there: bool) -> None:
    target, link = tmp_path / "elsewhere" / "file", tmp_path / "link"
    link.symlink_to(target)
    if there:
        target.parent.mkdir()
        target.write_bytes(b"old")
    write_atomically(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert list(target.parent.iterdir()) == [target]


def test_fifo_is_written_directly(tmp_path: Path) -> None:
    with read_fifo(tmp_path / "fifo") as read:
        write_atomically(tmp_path / "fifo", b"through")
    assert read == [b"through"]


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_failed_write_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os if failing == "fsync" else Path, failing, fail)
    with pytest.raises(OSError, match=r"No space left on device: .*file'"):
        write_atomically(path, b"new and longer")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_folder_lock_is_exclusive(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    other = os.open(tmp_path, os.O_RDONLY)
    with folder_lock(tmp_path), pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)
