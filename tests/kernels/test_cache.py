"""Tests of the cache folder, and of its temporary files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from scanline.kernels import cache
from scanline.kernels.cache import CacheFolderError, atomic_path, cache_folder


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Take the home away, and use an empty temporary folder."""

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("SCANLINE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cache._temporary_cache.cache_clear()
    return tmp_path


def test_without_a_home_the_cache_is_a_private_temporary_folder(temporary: Path) -> None:
    folder = cache_folder()
    assert folder == temporary / f"scanline-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700
    (folder / "built").touch()
    cache._temporary_cache.cache_clear()  # as in another process
    assert (cache_folder() / "built").exists()


@pytest.mark.parametrize("kind", ["open to others", "link", "file", "of another user"])
def test_a_folder_that_others_may_have_filled_is_not_used(
    kind: str, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code in the cache is executed."""
    folder = temporary / f"scanline-{os.getuid()}"
    if kind == "link":
        (temporary / "other").mkdir(mode=0o700)
        folder.symlink_to(temporary / "other")
    elif kind == "file":
        folder.touch(mode=0o700)
    else:
        folder.mkdir(mode=0o700)
    if kind == "open to others":
        folder.chmod(0o770)
    if kind == "of another user":
        uid = os.getuid()
        folder.rename(temporary / f"scanline-{uid + 1}")
        monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    used = cache_folder()
    assert used.name.startswith("scanline-")
    assert used not in (folder, temporary / f"scanline-{os.getuid()}")
    assert used == cache_folder()
    assert used.stat().st_mode & 0o777 == 0o700


def test_neither_home_nor_temporary_folder(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "missing"))
    with pytest.raises(CacheFolderError, match="set SCANLINE_CACHE"):
        cache_folder()


def test_folders_in_use_are_not_deleted_however_old(tmp_path: Path) -> None:
    path = tmp_path / "decoder-x.so"
    with atomic_path(path) as made:
        os.utime(made.parent, (0, 0))
        abandoned = tmp_path / ".decoder-y.so.z"
        abandoned.mkdir()
        os.utime(abandoned, (0, 0))
        with atomic_path(tmp_path / "decoder-z.so") as other:
            other.touch()
        assert not abandoned.exists()
        made.write_text("built")
    assert path.read_text() == "built"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["decoder-x.so", "decoder-z.so"]
