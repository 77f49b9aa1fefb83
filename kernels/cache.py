"""Cache folder for builds, data sets and evaluation models."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

STALE_SECONDS = 600.0  # age at which unfinished files of ended processes are deleted


class CacheFolderError(RuntimeError):
    """The location of the cache cannot be determined; the message says what to set."""


def cache_folder() -> Path:
    """Return the cache folder, which may not exist yet.

    It is ``SCANLINE_CACHE`` if set, otherwise ``scanline`` in ``XDG_CACHE_HOME`` or ``~/.cache``.

    Raises:
        CacheFolderError: No variable is set and there is no home folder.
    """
    if named := os.environ.get("SCANLINE_CACHE"):
        # Absolute, because dlopen searches the system's folders for a name without a slash.
        return Path(named).absolute()
    if caches := os.environ.get("XDG_CACHE_HOME"):
        return Path(caches, "scanline")
    try:
        return Path.home() / ".cache" / "scanline"
    except RuntimeError as error:
        raise CacheFolderError(f"{error} Set SCANLINE_CACHE to a writable folder") from error


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path and move the file created there to ``path`` at the end.

    The temporary path is in a new folder beside ``path``, so concurrent processes do not conflict.
    Stale folders of ended processes are deleted.

    Raises:
        OSError: The folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f".{path.name.partition('-')[0]}-*"):
        with contextlib.suppress(OSError):  # already deleted, or owned by another user
            if time.time() - left.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(left)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        made = Path(folder) / path.name
        yield made
        made.replace(path)
