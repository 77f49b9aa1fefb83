"""Standard output and error that tolerate a closed reader."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast


class _LossyStream:
    """Stream that drops its output once the reader of its pipe has gone, instead of raising."""

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
    """Ignore closed output streams inside the block: Ctrl-C ends ``scanline train | tee`` first."""
    out, error = (cast("TextIO", _LossyStream(stream)) for stream in (sys.stdout, sys.stderr))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        yield
