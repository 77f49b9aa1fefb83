"""Content negotiation by the ``Accept`` header."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T", bound=str)

_QUALITY = re.compile(r"0(\.\d*)?|1(\.0*)?")


def best_media_type(accept: str, offered: Sequence[T]) -> T | None:
    """Return the offered media type that an ``Accept`` header prefers (RFC 9110, section 12.5.1).

    The most specific range that matches a media type decides its quality. Of several media types
    with the same quality, the one that the header names first wins.

    Args:
        accept: Value of the header; "" accepts everything.
        offered: The media types to choose from, the default first.

    Returns:
        The media type, or None if none is acceptable.
    """
    qualities: dict[str, float] = {}
    for part in accept.split(","):
        media_range, *parameters = (piece.strip().lower() for piece in part.split(";"))
        quality = next((p[2:] for p in parameters if p.startswith("q=")), "1")
        if media_range:
            qualities[media_range] = float(quality) if _QUALITY.fullmatch(quality) else 0.0
    qualities = qualities or {"*/*": 1.0}
    order = list(qualities)

    def preference(media_type: T) -> tuple[float, int]:
        ranges = (media_type, f"{media_type.partition('/')[0]}/*", "*/*")
        match = next((name for name in ranges if name in qualities), None)
        return (0.0, 0) if match is None else (qualities[match], -order.index(match))

    best = max(offered, key=preference)
    return best if preference(best)[0] else None
