"""Cache folder for builds, data sets and evaluation models."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

STALE_SECONDS = 600.0  # age at which unfinished files that no process uses are deleted


class CacheFolderError(OSError):
    """There is no folder for the cache; the message says what to set."""


def cache_folder() -> Path:
    """Return the cache folder, which may not exist yet.

    It is ``SCANLINE_CACHE`` if set, otherwise ``scanline`` in ``XDG_CACHE_HOME`` or ``~/.cache``. A
    user without a home, such as an arbitrary id in a container, gets a folder of their own in the
    temporary folder.

    Raises:
        CacheFolderError: There is neither a home nor a temporary folder.
    """
    if named := os.environ.get("SCANLINE_CACHE"):
        # Absolute, because dlopen searches the system's folders for a name without a slash.
        return Path(named).absolute()
    if caches := os.environ.get("XDG_CACHE_HOME"):
        return Path(caches, "scanline")
    try:
        return Path.home() / ".cache" / "scanline"
    except RuntimeError:
        return _temporary_cache()


@functools.cache
def _temporary_cache() -> Path:
    """Create this user's cache in the temporary folder, or find that of earlier processes."""
    try:
        folder = Path(tempfile.gettempdir(), f"scanline-{os.getuid()}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        # Files in the cache are executed, and anyone may create a folder of this name.
        found = folder.lstat()
        ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
        if ours and not found.st_mode & 0o077:
            return folder
        return Path(tempfile.mkdtemp(prefix="scanline-"))
    except OSError as error:
        raise CacheFolderError(
            f"there is no home folder and no temporary folder ({error}); set SCANLINE_CACHE to a "
            "writable folder"
        ) from error


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path and move the file created there to ``path`` at the end.

    The temporary path is in a new folder beside ``path``, so concurrent processes do not conflict.
    The folder is locked while it is in use. Old folders without a lock are deleted.

    Raises:
        OSError: The folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f".{path.name.partition('-')[0]}-*"):
        with contextlib.suppress(OSError):  # in use, already deleted, or owned by another user
            if time.time() - left.stat().st_mtime > STALE_SECONDS:
                with _locked(left):
                    shutil.rmtree(left)
    with (
        tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder,
        contextlib.ExitStack() as stack,
    ):
        with contextlib.suppress(OSError):  # some network file systems have no locks
            stack.enter_context(_locked(Path(folder)))
        made = Path(folder) / path.name
        yield made
        made.replace(path)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder inside the block; raise ``OSError`` if it is locked already."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
