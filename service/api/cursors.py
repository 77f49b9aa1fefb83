"""Stream cursors: a reader's progress, encoded in each event's id so that a stream can resume."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

from scanline.service.engine.generation import Generation
from scanline.service.http.errors import ApiError

END_ID = "end"  # id of a stream's last event
_RUN = re.compile(r"(?:(\d{1,7})\*)?(\d{1,7})(?:\.(\d{1,7}))?(!?)", re.ASCII)


class Cursor(NamedTuple):
    """Reader's progress in one image.

    Attributes:
        position: Number of pixels sent.
        revisions: Number of revisions sent (``Image.revisions``).
        ended: True if the ``image`` event was sent.
    """

    position: int = 0
    revisions: int = 0
    ended: bool = False

    def __str__(self) -> str:
        revisions = f".{self.revisions}" if self.revisions else ""
        return f"{self.position}{revisions}{'!' if self.ended else ''}"


def format_cursors(cursors: Sequence[Cursor]) -> str:
    """Encode one cursor per image as an event id, with equal neighbours run-length encoded."""
    runs = [(len(list(run)), cursor) for cursor, run in itertools.groupby(cursors)]
    return ",".join(f"{n}*{cursor}" if n > 1 else str(cursor) for n, cursor in runs)


def parse_cursors(event_id: str, generation: Generation) -> list[Cursor]:
    """Decode an event id of ``format_cursors``: one cursor per image of the generation.

    Raises:
        ApiError: If the id cannot be one of this generation's.
    """
    images, cursors = len(generation.images), list[Cursor]()
    for part in event_id.split(",", images):
        run = _RUN.fullmatch(part)
        count = int(run[1] or 1) if run else 0
        if run is None or not 0 < count <= images - len(cursors):
            cursors.clear()
            break
        position = min(int(run[2]), generation.config.pixels)
        cursors += [Cursor(position, int(run[3] or 0), bool(run[4])) for _ in range(count)]
    if len(cursors) != images:
        raise ApiError(
            400, "last-event-id: this is not the id of an event of this stream; leave it out to "
            "receive the stream from the start",
            param="last-event-id", code="invalid_value",
        )  # fmt: skip
    return cursors
