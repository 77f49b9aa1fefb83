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
from scanline.service.generation import FinishReason, Generation, Image, Spec, Status, Weighed


class Known(NamedTuple):
    """How far an image is known: its pixels, and how many changes of those before."""

    position: int
    changes: int


class Part(NamedTuple):
    """Images of one generation that follow each other, as a drawing of their own.

    A replica tells nothing of what is ``known`` already, by whomever it was drawn. ``caller`` and
    ``size`` are the generation's, by which a replica gives turns, too.
    """

    spec: Spec
    known: list[Known]
    caller: str
    size: int

    @classmethod
    def of(cls, generation: Generation, images: list[Image]) -> Part:
        """Take some images, whose indices follow each other, as they are now."""
        spec = generation.spec
        own = replace(spec, n=len(images), seed=image_seed(spec.seed, images[0].index))
        known = [Known(image.position, len(image.changed)) for image in images]
        return cls(own, known, generation.caller, generation.size)


class End(NamedTuple):
    """How an image was finished."""

    reason: FinishReason
    bits: float | None
    weighed: Weighed | None


class Look(NamedTuple):
    """What is new of one image of a part: its pixels from ``start`` on, uint8 ``[…, C]``.

    ``image`` is its place in the part, and ``changed`` are the first pixels from which another
    particle was shown since.
    """

    image: int
    start: int
    pixels: NDArray[np.uint8]
    changed: list[int]
    end: End | None


News = list[Look]  # of a part, by its replica


class Report(NamedTuple):
    """How a replica is: its slots, with what it draws, and its metrics."""

    replica: str
    slots: int
    spare: int
    backend: str
    variant: str
    metrics: list[Metric]


def look_at(image: Image, known: Known) -> tuple[Look | None, Known]:
    """Give what is new of an image, None if nothing is, and how far it is known then."""
    finished = image.status is Status.FINISHED  # read first: then all of its pixels are there
    changed = image.changed[known.changes :]
    stop = image.position
    behind = stop < known.position or len(image.changed) < known.changes
    if behind and not finished:
        return None, known  # drawn again, and not yet where another replica left it
    start = min([known.position, *changed])
    if start == stop and not finished:
        return None, known
    end = None
    if finished and image.finish_reason is not None:
        end = End(image.finish_reason, image.bits, image.particles)
    look = Look(image.index, start, image.read(start, stop), changed, end)
    return look, Known(max(stop, known.position), known.changes + len(changed))


class Replicas(Protocol):
    """How the replicas of a model are reached."""

    def draw(self, part: Part) -> Drawing:
        """Have one draw a part."""
        ...

    async def meet(
        self, entrance: str, share: float, seconds: float
    ) -> tuple[list[Report], list[Exception]]:
        """Have all of them report; gives what came in so long, and why others did not report.

        That is a ``TimeoutError`` of one that says nothing. Raises where there are none.
        """
        ...


class Drawing(Protocol):
    """The news of a part, as they come; raises where its replica dies."""

    async def __anext__(self) -> News: ...
    def cancel(self) -> None:
        """End it, drawn or not."""
        ...
