"""What goes to a replica and what comes back: some images of a generation, and news of them.

And how replicas are reached, whatever keeps them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from prometheus_client import Metric

from scanline.model.noise import image_seed
from scanline.service.engine.generation import (
    FinishReason,
    Generation,
    GenerationSpec,
    Image,
    ParticleStats,
    Status,
)


class ImageProgress(NamedTuple):
    """How far an image is known: its pixels, and how many changes of those before."""

    position: int
    changes: int


class WorkItem(NamedTuple):
    """Images of one generation that follow each other, as a drawing of their own.

    A replica tells nothing of what is ``known`` already, by whomever it was drawn. ``caller`` and
    ``size`` are the generation's, by which a replica gives turns, too.
    """

    spec: GenerationSpec
    known: list[ImageProgress]
    caller: str
    request_slots: int

    @classmethod
    def of(cls, generation: Generation, images: list[Image]) -> WorkItem:
        """Take some images, whose indices follow each other, as they are now."""
        spec = generation.spec
        own = replace(spec, n=len(images), seed=image_seed(spec.seed, images[0].index))
        known = [ImageProgress(image.position, len(image.revisions)) for image in images]
        return cls(own, known, generation.caller, generation.request_slots)


class ImageResult(NamedTuple):
    """How an image was finished."""

    reason: FinishReason
    bits: float | None
    weighed: ParticleStats | None


class ImageUpdate(NamedTuple):
    """What is new of one image of a part: its pixels from ``start`` on, uint8 ``[…, C]``.

    ``image`` is its place in the part, and ``changed`` are the first pixels from which another
    particle was shown since.
    """

    image: int
    start: int
    pixels: NDArray[np.uint8]
    changed: list[int]
    end: ImageResult | None


ItemUpdates = list[ImageUpdate]  # of a part, by its replica


class ReplicaReport(NamedTuple):
    """How a replica is: its slots, with what it draws, and its metrics."""

    replica: str
    slots: int
    spare: int
    backend: str
    variant: str
    metrics: list[Metric]


def image_update(image: Image, known: ImageProgress) -> tuple[ImageUpdate | None, ImageProgress]:
    """Give what is new of an image, None if nothing is, and how far it is known then."""
    finished = image.status is Status.FINISHED  # read first: then all of its pixels are there
    changed = image.revisions[known.changes :]
    stop = image.position
    behind = stop < known.position or len(image.revisions) < known.changes
    if behind and not finished:
        return None, known  # drawn again, and not yet where another replica left it
    start = min([known.position, *changed])
    if start == stop and not finished:
        return None, known
    end = None
    if finished and image.finish_reason is not None:
        end = ImageResult(image.finish_reason, image.bits, image.particles)
    look = ImageUpdate(image.index, start, image.read(start, stop), changed, end)
    return look, ImageProgress(max(stop, known.position), known.changes + len(changed))


class ReplicaClient(Protocol):
    """How the replicas of a model are reached."""

    def draw(self, part: WorkItem) -> UpdateStream:
        """Have one draw a part."""
        ...

    async def heartbeat(
        self, frontend: str, share: float, seconds: float
    ) -> tuple[list[ReplicaReport], list[Exception]]:
        """Have all of them report; gives what came in so long, and why others did not report.

        That is a ``TimeoutError`` of one that says nothing. Raises where there are none.
        """
        ...


class UpdateStream(Protocol):
    """The news of a part, as they come; raises where its replica dies."""

    async def __anext__(self) -> ItemUpdates: ...
    def cancel(self) -> None:
        """End it, drawn or not."""
        ...
