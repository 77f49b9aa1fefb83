"""Exclusive lock on a run's folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

LOCK_NAME = ".lock"
# Temporary files of `write_atomically`, left behind by a killed run.
_PARTIAL = re.compile(r"\.(training\.pt|(samples|curve)\.png|.+\.safetensors)\.[0-9a-f]{8}")
_PARTIAL_AGE = 60  # seconds after which a temporary file is considered abandoned


@contextlib.contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Create a folder, lock it for the block, and delete temporary files of killed runs.

    Uses ``flock`` directly: ``filelock`` would leave its file in the folder and fail on network
    file systems without locks, where we go on unlocked.

    Raises:
        ValueError: If another run holds the lock, or the folder cannot be written.
    """
    path = folder / LOCK_NAME
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(path.open("a"))
        except OSError as error:
            raise ValueError(
                f"cannot write into {folder} ({error.strerror}): choose another folder with --out"
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The previous owner may have deleted the file between our open and our flock.
            acquired = os.path.samestat(os.fstat(lock.fileno()), path.stat())
        except (BlockingIOError, FileNotFoundError):
            acquired = False
        except OSError:  # no lock support: continue unlocked
            acquired = True
        if not acquired:
            raise ValueError(
                f"another run is using {folder}: wait until it ends, or choose another folder "
                "with --out"
            )
        for file in folder.iterdir():
            with contextlib.suppress(OSError):  # deleted by its owner meanwhile
                if (
                    _PARTIAL.fullmatch(file.name)
                    and file.stat().st_mtime < time.time() - _PARTIAL_AGE
                ):
                    file.unlink()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                path.unlink()
