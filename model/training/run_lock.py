"""A run has its folder for itself."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

LOCK_NAME = ".lock"
# Of a file being written.
_PARTIAL = re.compile(r"\.(training\.pt|(samples|curve)\.png|.+\.safetensors)\.[0-9a-f]{8}")
_OLD = 60  # seconds, by which it is being written no more


@contextlib.contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Have a folder for this run inside the block, without what a killed one left half written.

    Raises ``ValueError`` where another run has it.
    """
    path = folder / LOCK_NAME
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(path.open("a"))
        except OSError as error:
            raise ValueError(
                f"nothing can be written into {folder} ({error.strerror}): give another --out"
            ) from None
        try:
            import fcntl  # not on Windows

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = os.path.samestat(os.fstat(lock.fileno()), path.stat())
        except (BlockingIOError, FileNotFoundError):
            held = False
        except (OSError, ImportError):  # no locks here: as if nobody else were there
            held = True
        if not held:
            raise ValueError(
                f"a run is under way in {folder}: wait for its end, or give another --out"
            )
        for left in folder.iterdir():
            with contextlib.suppress(OSError):  # gone meanwhile
                if _PARTIAL.fullmatch(left.name) and left.stat().st_mtime < time.time() - _OLD:
                    left.unlink()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                path.unlink()  # one who has it open sees that it is another
