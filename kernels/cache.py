"""Where what is made or fetched once is kept: builds, data sets, a judge's classifier."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

STALE_SECONDS = 600.0  # after which what an ended process was making is taken away


class CacheFolderError(RuntimeError):
    """Nothing says where the cache is; the message says what to set."""


def cache_folder() -> Path:
    """Give the folder of what is made or fetched once, which may not exist yet.

    ``SCANLINE_CACHE``, else ``scanline`` in ``XDG_CACHE_HOME`` or in ``~/.cache``. Raises
    ``CacheFolderError`` where none is named and there is no home.
    """
    if named := os.environ.get("SCANLINE_CACHE"):
        return Path(named).absolute()  # a name without a folder is looked for among the system's
    if caches := os.environ.get("XDG_CACHE_HOME"):
        return Path(caches, "scanline")
    try:
        return Path.home() / ".cache" / "scanline"
    except RuntimeError as error:
        raise CacheFolderError(f"{error} Set SCANLINE_CACHE to a writable folder") from error


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Give where to make a file, which is then moved to ``path``: two processes do not meet.

    It is alone in a folder. Raises ``OSError`` where that cannot be.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f".{path.name.partition('-')[0]}-*"):
        with contextlib.suppress(OSError):  # gone meanwhile, or another's
            if time.time() - left.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(left)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        made = Path(folder) / path.name
        yield made
        made.replace(path)
