"""Cached snapshot of the queue, used to estimate waiting times."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from scanline.service.engine.fair_queue import FairQueue
from scanline.service.engine.generation import Generation

MAX_AGE_SECONDS = 0.5


class QueueSnapshot(NamedTuple):
    """State of a queue at one moment.

    Taking a snapshot visits every waiting image, so one snapshot answers all questions for
    ``MAX_AGE_SECONDS``.

    Attributes:
        taken_at: Time of the snapshot, in seconds of the queue's clock.
        positions: Number of images ahead of a generation's first image, by generation id.
        images: Number of waiting images.
        slots: Number of slots that these images need.
        remaining: Pixels until each busy slot is free, in ascending order.
    """

    taken_at: float
    positions: dict[str, int]
    images: int
    slots: int
    remaining: list[int]

    @classmethod
    def take(cls, queue: FairQueue, live: Iterable[Generation], now: float) -> QueueSnapshot:
        """Take a snapshot of the waiting images and of all unfinished generations."""
        waiting = list(queue.iter_images())
        positions: dict[str, int] = {}
        for position, generation in enumerate(waiting):
            positions.setdefault(generation.id, position)
        return cls(
            taken_at=now,
            positions=positions,
            images=len(waiting),
            slots=sum(generation.spec.slots_per_image for generation in waiting),
            remaining=sorted(pixels for one in live for pixels in one.remaining_pixels()),
        )

    def is_fresh(self, now: float) -> bool:
        """Return True if the snapshot is recent enough to be used."""
        return now < self.taken_at + MAX_AGE_SECONDS

    def estimate_seconds(self, images: int, pixels: int, rate: float) -> float:
        """Estimate the seconds until the first ``images`` waiting images have slots.

        Args:
            images: Number of waiting images.
            pixels: Pixels per image.
            rate: Pixels per second of all slots together.

        Returns:
            Seconds, or 0 if nothing runs or the rate is unknown.
        """
        if not self.remaining or not rate:
            return 0.0
        slots_per_image = self.slots / max(self.images, 1)
        last = math.ceil(images * slots_per_image) - 1  # index of the last slot they need
        rounds, last = divmod(max(last, 0), len(self.remaining))
        return (rounds * pixels + self.remaining[last]) * len(self.remaining) / rate
