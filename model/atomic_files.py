"""Files that are whole at any time, whatever happens while they are written."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file's content in one step: a reader, or a crash, never sees half of it.

    A link stays, and what it leads to is replaced. The file keeps its mode; a new one has what the
    umask says. What is there and no regular file, as a FIFO or a device, is written into.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    path = path.resolve()
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    handle = os.open(partial, flags, 0o666 if mode is None else 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            if mode is not None:
                os.fchmod(handle, mode)
            file.write(data)
            file.flush()
            os.fsync(handle)
        partial.replace(path)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError):  # a full disk's says nothing of the file
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Let one writer at a time into a folder; where the system has no such locks, all."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, OSError):  # Windows, or a network's file system
            import fcntl

            handle = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
