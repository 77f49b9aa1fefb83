"""Bounds of a queue, and the errors of an engine that accepts no more work."""

from __future__ import annotations

from dataclasses import dataclass

RESULT_CACHE_BYTES = 1 << 28  # of the finished images that an engine keeps
CLOSED_MESSAGE = "the server is shutting down; send the request to another one"


class RefusedError(Exception):
    """A limit was reached, so that images are not accepted now.

    Attributes:
        code: The limit, as the code of the API's error.
        retry_after: Seconds until they may be accepted.
    """

    def __init__(self, message: str, code: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.code, self.retry_after = code, retry_after


class ClosedError(Exception):
    """The engine accepts no more work, because the server is shutting down."""


@dataclass(frozen=True, kw_only=True)
class QueueLimits:
    """Bounds of a queue.

    Attributes:
        max_waiting: Waiting images.
        keep_finished: Finished images to keep for replay; fewer large ones, so that they do not
            exceed ``RESULT_CACHE_BYTES``.
        keep_seconds: How long a finished generation is kept.
        grace: Seconds that a generation continues after its last reader left.
    """

    max_waiting: int = 4096
    keep_finished: int = 4096
    keep_seconds: float = 300.0
    grace: float = 15.0

    @property
    def keeps_results(self) -> bool:
        """True if a generation can be read after it has finished."""
        return self.keep_finished > 0 and self.keep_seconds > 0
