"""How far a reader of a stream is, written into each event's id, so that nothing is sent twice."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

from scanline.service.engine.generation import Generation
from scanline.service.http.errors import ApiError

END_ID = "end"  # the id of a stream's last event: whoever names it has seen all
_RUN = re.compile(r"(?:(\d{1,7})\*)?(\d{1,7})(?:\.(\d{1,7}))?(!?)", re.ASCII)


class Cursor(NamedTuple):
    """How far a reader is in an image.

    ``position`` counts its pixels, ``changes`` those of what it had been told before, and ``told``
    says whether it knows of the image's end.
    """

    position: int = 0
    changes: int = 0
    told: bool = False

    def __str__(self) -> str:
        changes = f".{self.changes}" if self.changes else ""
        return f"{self.position}{changes}{'!' if self.told else ''}"


def format_cursors(cursors: Sequence[Cursor]) -> str:
    """Write cursors as an event's id: equal ones that follow each other, as most do, once."""
    runs = [(len(list(run)), cursor) for cursor, run in itertools.groupby(cursors)]
    return ",".join(f"{n}*{cursor}" if n > 1 else str(cursor) for n, cursor in runs)


def parse_cursors(identifier: str, generation: Generation) -> list[Cursor]:
    """Read what ``format_cursors`` wrote for this generation; raises ``ApiError`` on else."""
    images, cursors = len(generation.images), list[Cursor]()
    for part in identifier.split(",", images):
        run = _RUN.fullmatch(part)
        count = int(run[1] or 1) if run else 0
        if run is None or not 0 < count <= images - len(cursors):
            cursors.clear()
            break
        position = min(int(run[2]), generation.config.pixels)
        cursors += [Cursor(position, int(run[3] or 0), bool(run[4])) for _ in range(count)]
    if len(cursors) != images:
        raise ApiError(
            400, "last-event-id: this stream never sent that id; leave it out to have all of it",
            param="last-event-id", code="invalid_value",
        )  # fmt: skip
    return cursors
