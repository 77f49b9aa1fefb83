"""Bounds of a queue, and the errors of a queue that accepts nothing more."""

from __future__ import annotations

from dataclasses import dataclass

RESULT_CACHE_BYTES = 1 << 28  # of the finished images that an engine keeps
CLOSED_MESSAGE = "the server is shutting down; send the request to another one"


class QueueFullError(Exception):
    """The queue has no room for the images; there should be room in ``retry_after`` seconds."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"the queue is full; try again in {retry_after} s")
        self.retry_after = retry_after


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
