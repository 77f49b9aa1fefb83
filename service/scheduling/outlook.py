"""How long who waits will wait: how a queue stood, for all who ask in a while."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from scanline.service.generation import Generation
from scanline.service.scheduling.order import Order

GOOD_SECONDS = 0.5


class Outlook(NamedTuple):
    """How a queue stood, by which places and waits are told for a while: making one looks at all.

    ``places`` are the images before a generation's first, by its id; ``images`` says how many wait,
    and ``slots`` how many they want; ``left`` are, for each slot in use, the pixels until it is
    free, in ascending order.
    """

    when: float
    places: dict[str, int]
    images: int
    slots: int
    left: list[int]

    @classmethod
    def of(cls, order: Order, live: Iterable[Generation], now: float) -> Outlook:
        """Look at those that wait, in their order, and at all that are not finished."""
        waiting = list(order.images())
        places: dict[str, int] = {}
        for place, generation in enumerate(waiting):
            places.setdefault(generation.id, place)
        return cls(
            when=now,
            places=places,
            images=len(waiting),
            slots=sum(one.spec.slots for one in waiting),
            left=sorted(left for one in live for left in one.pixels_left()),
        )

    def good(self, now: float) -> bool:
        """Whether it may still be told by."""
        return now < self.when + GOOD_SECONDS

    def seconds(self, images: int, pixels: int, rate: float) -> float:
        """Estimate when so many of the images that wait will have slots.

        Of so many pixels each, at a rate in pixels a second; 0 where nothing is known.
        """
        if not self.left or not rate:
            return 0.0
        each = self.slots / max(self.images, 1)
        last = math.ceil(images * each) - 1  # slot to come free for them
        rounds, last = divmod(max(last, 0), len(self.left))
        return (rounds * pixels + self.left[last]) * len(self.left) / rate
