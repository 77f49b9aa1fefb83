"""Where what is made or fetched once is kept: builds, data sets, a judge's classifier."""

from __future__ import annotations

import os
from pathlib import Path


class NoCacheError(RuntimeError):
    """Nothing says where the cache is; the message says what to set."""


def cache_folder() -> Path:
    """Give the folder of what is made or fetched once, which may not exist yet.

    ``SCANLINE_CACHE``, else ``scanline`` in ``XDG_CACHE_HOME`` or in ``~/.cache``. Raises
    ``NoCacheError`` where none is named and there is no home.
    """
    if named := os.environ.get("SCANLINE_CACHE"):
        return Path(named).absolute()  # a name without a folder is looked for among the system's
    if caches := os.environ.get("XDG_CACHE_HOME"):
        return Path(caches, "scanline")
    try:
        return Path.home() / ".cache" / "scanline"
    except RuntimeError as error:
        raise NoCacheError(f"{error} Set SCANLINE_CACHE to a writable folder") from error
