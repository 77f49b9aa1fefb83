"""How long who waits will wait: how a queue stood, for all who ask in a while."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from scanline.service.engine.fair_queue import FairQueue
from scanline.service.engine.generation import Generation

MAX_AGE_SECONDS = 0.5


class QueueSnapshot(NamedTuple):
    """How a queue stood, by which places and waits are told for a while: making one looks at all.

    ``places`` are the images before a generation's first, by its id; ``images`` says how many wait,
    and ``slots`` how many they want; ``left`` are, for each slot in use, the pixels until it is
    free, in ascending queue.
    """

    taken_at: float
    positions: dict[str, int]
    images: int
    slots: int
    remaining: list[int]

    @classmethod
    def take(cls, queue: FairQueue, live: Iterable[Generation], now: float) -> QueueSnapshot:
        """Look at those that wait, in their order, and at all that are not finished."""
        waiting = list(queue.iter_images())
        positions: dict[str, int] = {}
        for place, generation in enumerate(waiting):
            positions.setdefault(generation.id, place)
        return cls(
            taken_at=now,
            positions=positions,
            images=len(waiting),
            slots=sum(one.spec.slots for one in waiting),
            remaining=sorted(left for one in live for left in one.remaining_pixels()),
        )

    def is_fresh(self, now: float) -> bool:
        """Whether it may still be told by."""
        return now < self.taken_at + MAX_AGE_SECONDS

    def estimate_seconds(self, images: int, pixels: int, rate: float) -> float:
        """Estimate when so many of the images that wait will have slots.

        Of so many pixels each, at a rate in pixels a second; 0 where nothing is known.
        """
        if not self.remaining or not rate:
            return 0.0
        each = self.slots / max(self.images, 1)
        last = math.ceil(images * each) - 1  # slot to come free for them
        rounds, last = divmod(max(last, 0), len(self.remaining))
        return (rounds * pixels + self.remaining[last]) * len(self.remaining) / rate
