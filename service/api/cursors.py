"""How far a reader of a stream is, written into each event's id, so that nothing is sent twice."""

from __future__ import annotations

import re

import numpy as np

from scanline.service.generation import Generation
from scanline.service.http.errors import ApiError

END = "end"  # the id of a stream's last event: whoever names it has seen all
_RUN = re.compile(r"(?:(\d{1,7})\*)?(\d{1,7})(?:\.(\d{1,7}))?(!?)", re.ASCII)


class Cursors:
    """How far a reader is in each image of a generation.

    ``positions: int32 [n]`` count its pixels, ``changes: int32 [n]`` those of what it had been told
    before, and ``told: bool [n]`` says whether it knows of the image's end.
    """

    def __init__(self, images: int) -> None:
        self.positions, self.changes = np.zeros((2, images), np.int32)
        self.told = np.zeros(images, np.bool_)

    def __str__(self) -> str:
        """Write an event's id: equal ones that follow each other, as most do, once.

        For every event of every stream, thousands of images long perhaps: no work on each image.
        """
        p, c, t = self.positions, self.changes, self.told
        moves = (p[1:] != p[:-1]) | (c[1:] != c[:-1]) | (t[1:] != t[:-1])
        starts = np.concatenate(([0], moves.nonzero()[0] + 1))
        values = zip(p[starts].tolist(), c[starts].tolist(), t[starts].tolist(), strict=True)
        ends = [*starts.tolist(), len(t)]
        return ",".join(
            f"{f'{end - start}*' if end - start > 1 else ''}{position}"
            f"{f'.{changes}' if changes else ''}{'!' if told else ''}"
            for start, end, (position, changes, told) in zip(ends, ends[1:], values, strict=False)
        )

    @classmethod
    def read(cls, identifier: str, generation: Generation) -> Cursors:
        """Read an event's id that was written for this generation; raises ``ApiError`` on else."""
        images = len(generation.images)
        cursors, read = cls(images), 0
        for part in identifier.split(",", images):
            run = _RUN.fullmatch(part.strip())
            count = int(run[1] or 1) if run else 0
            if run is None or not 0 < count <= images - read:
                read = 0
                break
            these = slice(read, read + count)
            cursors.positions[these] = min(int(run[2]), generation.config.pixels)
            cursors.changes[these], cursors.told[these] = int(run[3] or 0), bool(run[4])
            read += count
        if read != images:
            raise ApiError(
                400,
                "last-event-id: this stream never sent that id; leave it out to have all of it",
                param="last-event-id", code="invalid_value",
            )  # fmt: skip
        return cursors
