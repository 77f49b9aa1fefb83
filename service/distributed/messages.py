"""Messages between the frontend and the replicas, and the interface to reach replicas."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from prometheus_client import Metric

from scanline.model.noise import image_seed
from scanline.service.engine.generation import Generation, GenerationSpec
from scanline.service.engine.image import FinishReason, Image, ParticleStats, Status


class ImageProgress(NamedTuple):
    """The part of an image that the frontend has received.

    Attributes:
        position: Number of pixels.
        revisions: Number of revisions of these pixels (see ``Image.revisions``).
    """

    position: int
    revisions: int


class WorkItem(NamedTuple):
    """Consecutive images of one generation, for a replica to draw as a generation of its own.

    Attributes:
        spec: What to draw.
        progress: What the frontend has received of each image, from whichever replica. The replica
            sends only what is new.
        caller: The generation's caller, which the replica schedules it for.
        request_slots: Slots that all images of the client's request need.
        reproducibility: ``reproducibility`` of the replicas that the frontend uses.
    """

    spec: GenerationSpec
    progress: list[ImageProgress]
    caller: str
    request_slots: int
    reproducibility: str | None = None

    @classmethod
    def of(
        cls, generation: Generation, images: list[Image], reproducibility: str | None
    ) -> WorkItem:
        """Make a work item of consecutive images in their present state."""
        spec = generation.spec
        item_spec = replace(spec, n=len(images), seed=image_seed(spec.seed, images[0].index))
        progress = [ImageProgress(image.position, len(image.revisions)) for image in images]
        return cls(
            item_spec, progress, generation.caller, generation.request_slots, reproducibility
        )


class ImageResult(NamedTuple):
    """Result of a finished image."""

    reason: FinishReason
    bits: float | None
    particles: ParticleStats | None


class ImageUpdate(NamedTuple):
    """New pixels of one image.

    Attributes:
        image: Index of the image in its work item.
        start: Index of the first new pixel.
        pixels: The new pixels, uint8 ``[n, C]``.
        revisions: New revisions (see ``Image.revisions``).
        result: Set if the image has finished.
    """

    image: int
    start: int
    pixels: NDArray[np.uint8]
    revisions: list[int]
    result: ImageResult | None


ItemUpdates = list[ImageUpdate]  # updates of one work item's images


class ReplicaReport(NamedTuple):
    """A replica's capacity, decoder and metrics."""

    replica: str
    slots: int
    spare: int
    backend: str
    variant: str
    arithmetic: int | None
    metrics: list[Metric]
    slow: bool = False

    @property
    def reproducibility(self) -> str:
        """Identifier of the bytes that a replica draws; equal in replicas that share an image."""
        return reproducibility(self.arithmetic, self.variant)


def reproducibility(arithmetic: int | None, variant: str) -> str:
    """Return the variant if a seed's bytes are the same on every machine, or "machine"."""
    return "machine" if arithmetic is None else variant


def image_update(image: Image, known: ImageProgress) -> tuple[ImageUpdate | None, ImageProgress]:
    """Return what is new in an image, or None, and the progress after that update."""
    # Read the status first: if it is FINISHED, all pixels are there.
    finished = image.status is Status.FINISHED
    revisions = image.revisions[known.revisions :]
    stop = image.position
    # An image that is drawn again may not yet be where a lost replica left it.
    behind = stop < known.position or len(image.revisions) < known.revisions
    if behind and not finished:
        return None, known
    start = min([known.position, *revisions])
    if start == stop and not finished:
        return None, known
    result = None
    if finished and image.finish_reason is not None:
        result = ImageResult(image.finish_reason, image.bits, image.particles)
    update = ImageUpdate(image.index, start, image.read(start, stop), revisions, result)
    progress = ImageProgress(max(stop, known.position), known.revisions + len(revisions))
    return update, progress


class ReplicaClient(Protocol):
    """Client of a model's replicas."""

    def draw(self, item: WorkItem) -> UpdateStream:
        """Send a work item to one replica."""

    async def heartbeat(
        self, frontend: str, share: float, reproducibility: str | None
    ) -> tuple[list[ReplicaReport], list[Exception]]:
        """Ask all replicas for a report within ``HEARTBEAT_TIMEOUT``.

        Args:
            frontend: Id of this frontend.
            share: Waiting slots at this frontend, divided by the number of replicas.
            reproducibility: That of the replicas that the frontend uses, None if there are none.
                A replica with another one ends.

        Returns:
            The reports, and one exception for each replica that did not report: a ``TimeoutError``
            if it was silent.

        Raises:
            Exception: There is no replica.
        """


class UpdateStream(Protocol):
    """Asynchronous iterator over the updates of a work item; raises if its replica dies."""

    async def __anext__(self) -> ItemUpdates: ...
    def cancel(self) -> None:
        """Cancel the work item."""
