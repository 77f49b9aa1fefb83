"""Decoders: many images in flight, one slot each, advanced pixel by pixel.

``Decoder`` is all that the engine knows. ``ReferenceDecoder`` is plain torch and the definition of
every other backend. All promise that the same seed gives the same bytes, alone or among
thousands: a row's arithmetic never depends on the other rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from scanline.model.config import NO_LABEL, ModelConfig


class BackendError(RuntimeError):
    """A backend that was asked for by name cannot run here; the message says why."""


class Decoder(ABC):
    """``max_slots`` images in flight, each row of every array one slot.

    Numpy arrays on the host: ``canvas: uint8 [N, T, C]`` the pixels so far, ``bits: float32
    [N, T]`` each decided pixel's cost under the model (temperature 1), ``positions: int32 [N]``
    pixels decided. Methods take slots as int32 arrays in which -1 stands for none and is skipped;
    they may be called from one thread only.
    """

    backend: str

    def __init__(self, config: ModelConfig, max_slots: int) -> None:
        if max_slots < 1:
            raise ValueError(f"max_slots must be at least 1, not {max_slots}")
        N, T, C = max_slots, config.pixels, config.channels
        self.config, self.max_slots = config, max_slots
        self.canvas: NDArray[np.uint8] = np.zeros((N, T, C), np.uint8)
        self.bits: NDArray[np.float32] = np.zeros((N, T), np.float32)
        self.positions: NDArray[np.int32] = np.zeros(N, np.int32)
        self.known: NDArray[np.uint8] = np.zeros((N, T), np.uint8)
        self.noise: NDArray[np.float32] = np.full((N, T, config.draws), 0.5, np.float32)
        self.temperature: NDArray[np.float32] = np.ones(N, np.float32)
        self.label: NDArray[np.int32] = np.full(N, NO_LABEL, np.int32)

    @abstractmethod
    def reset(self, slots: Sequence[int] | NDArray[np.int32]) -> None:
        """Put these slots before their first pixel: zero state, position 0."""

    def load(
        self,
        slots: Sequence[int] | NDArray[np.int32],
        canvas: NDArray[np.uint8],
        known: NDArray[np.bool_],
        noise: NDArray[np.float32],
        temperature: NDArray[np.float32],
        label: NDArray[np.int32],
    ) -> None:
        """Give images their inputs, one row a slot.

        ``canvas: [S, T, C]`` holds the given pixels and ``known: [S, T]`` says which they are:
        a known pixel is never redrawn, wherever it is. ``noise: [S, T, draws]`` uniforms in (0, 1),
        ``temperature: [S]`` ≥ 0, ``label: [S]`` a class or -1. Raises ``ValueError`` on a label
        that the network does not have, and on noise or temperatures out of their range.
        """
        if label.size and not (label.min() >= NO_LABEL and label.max() < len(self.config.classes)):
            raise ValueError(f"labels must be -1 … {len(self.config.classes) - 1}")
        if not ((noise > 0) & (noise < 1)).all():
            raise ValueError("the noise must lie between 0 and 1, both excluded")
        if not (np.isfinite(temperature) & (temperature >= 0)).all():
            raise ValueError("temperatures must be 0 or more, and finite")
        for row, slot in enumerate(slots):
            if slot >= 0:
                self.canvas[slot] = np.where(known[row][:, None], canvas[row], 0)
                self.known[slot] = known[row]
                self.noise[slot] = noise[row]
                self.temperature[slot] = temperature[row]
                self.label[slot] = label[row]
                self.bits[slot] = 0

    @abstractmethod
    def prefill(
        self, slots: Sequence[int] | NDArray[np.int32], lengths: Sequence[int] | NDArray[np.int32]
    ) -> None:
        """Absorb each slot's leading known pixels, ``lengths`` of them, in one parallel pass.

        The slots must have been reset and loaded. Raises ``ValueError`` where a length is not 0
        to T, or a pixel among the first ``lengths`` is not known.
        """

    @abstractmethod
    def step(self, slots: Sequence[int] | NDArray[np.int32], n: int) -> None:
        """Advance each slot by up to ``n`` pixels; one that reaches T stays there."""

    def launch(self, slots: Sequence[int] | NDArray[np.int32], n: int) -> None:
        """Begin what ``step`` does, on a device that goes on by itself; ``land`` ends it.

        Until then the slots' arrays show the pixels before. Slots may be reset and loaded
        meanwhile, whose images are then others.
        """
        self.step(slots, n)

    def land(self) -> None:  # noqa: B027
        """Wait for all that was launched: the arrays are true again."""

    def _chosen(self, slots: Sequence[int] | NDArray[np.int32]) -> NDArray[np.int32]:
        """Leave out -1; raises ``ValueError`` on a slot that is not there, or named twice."""
        rows: NDArray[np.int32] = np.asarray(slots, np.int32)
        rows = rows[rows != -1]
        there = not rows.size or (rows.min() >= 0 and rows.max() < self.max_slots)
        if not there or (len(rows) > 1 and np.bincount(rows).max() > 1):
            raise ValueError("slots must be -1 or different numbers below max_slots")
        return rows

    def _check_prefill(
        self, slots: Sequence[int] | NDArray[np.int32], lengths: Sequence[int] | NDArray[np.int32]
    ) -> None:
        self._chosen(slots)
        for slot, length in zip(slots, lengths, strict=True):
            if slot < 0:
                continue
            if not 0 <= length <= self.config.pixels:
                raise ValueError(f"slot {slot}: an image has no first {length} pixels")
            if not self.known[slot, :length].all():
                raise ValueError(f"slot {slot}: not all of its first {length} pixels are known")
