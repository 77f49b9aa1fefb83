"""Images of a generation: the state that the engine writes and readers read.

The engine thread writes pixels and positions and then notifies the readers. Each reader keeps its
own cursor and copies the pixels that it has not sent yet, so a slow reader costs nothing.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanline.model.config import NO_LABEL


class Status(StrEnum):
    """Status of an image."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason(StrEnum):
    """Reason for the end of an image."""

    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class CanvasView(NamedTuple):
    """Pixels of an image, uint8 ``[T, C]``, and its position, int32 ``[1]``.

    While the image runs, these are views of the decoder's canvas and of the published positions.
    Once it has finished they are copies.
    """

    pixels: NDArray[np.uint8]
    position: NDArray[np.int32]


class ParticleStats(NamedTuple):
    """Statistics of an image's particle filter (see ``ParticleFilter``)."""

    effective_size: float
    min_effective_size: float
    log_evidence: float


class Image:
    """One image of a generation. The engine thread writes it; any thread may read it.

    Attributes:
        bits: Cost of all pixels in bits under the model, None unless the image is complete.
        revisions: For each switch to another particle, the first pixel that changed.
    """

    def __init__(
        self, index: int, seed: int, initial_view: CanvasView, label: int = NO_LABEL
    ) -> None:
        self.index, self.seed, self.label = index, seed, label
        self.status = Status.WAITING
        self.finish_reason: FinishReason | None = None
        self.bits: float | None = None
        self.particles: ParticleStats | None = None
        self.revisions: list[int] = []
        self._view = initial_view
        self._initial_pixels = initial_view.pixels  # shown wherever nothing is drawn yet

    def start(self, view: CanvasView) -> None:
        """Mark the image as running, and show ``view`` from now on."""
        self._view, self.status = view, Status.RUNNING

    def switch_view(self, view: CanvasView, changed: int) -> None:
        """Show another slot's view. Its pixels differ from pixel ``changed`` on."""
        self._view = view
        self.revisions.append(changed)

    def write(self, start: int, pixels: NDArray[np.uint8], revisions: list[int]) -> None:
        """Write pixels that a replica drew, from ``start`` on, and append its revisions."""
        view = self._view
        stop = start + len(pixels)
        view.pixels[start:stop] = pixels
        self.revisions += revisions
        view.position[0] = stop

    def finish(self, reason: FinishReason, bits: float | None) -> None:
        """Mark the image as finished, and copy its pixels so that its slot can be reused."""
        copy = CanvasView(self._view.pixels.copy(), self._view.position.copy())
        copy.pixels[copy.position[0] :] = self._initial_pixels[copy.position[0] :]
        self._view, self.bits = copy, bits
        self.finish_reason, self.status = reason, Status.FINISHED

    @property
    def position(self) -> int:
        """Number of pixels that are decided and published."""
        while True:
            view = self._view
            position = int(view.position[0])
            # If the image finished meanwhile, its slot may belong to another image by now. Read
            # the copy instead.
            if self._view is view:
                return position

    def read(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Copy pixels ``start`` to ``stop``, uint8 ``[stop - start, C]``; ``stop`` ≤ position."""
        while True:
            view = self._view
            pixels = view.pixels[start:stop].copy()
            if self._view is view:  # else as in `position`
                return pixels

    def preview(self, position: int) -> NDArray[np.uint8]:
        """Copy the image up to ``position``, with the known pixels after it: uint8 ``[T, C]``."""
        pixels = self._initial_pixels.copy()
        pixels[:position] = self.read(0, position)
        return pixels
