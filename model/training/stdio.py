"""Standard output and error whose reader may go away while a run goes on."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast


class _Lossy:
    """A stream that loses what nobody reads any more, as behind a pipe, where others raise."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def ignore_closed_output() -> Iterator[None]:
    """Let the block outlive whoever reads what it says: Ctrl-C ends ``tee`` first."""
    out, error = (cast("TextIO", _Lossy(stream)) for stream in (sys.stdout, sys.stderr))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        yield
