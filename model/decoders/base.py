"""Base class of the decoders, and the batch of inputs that they take.

A decoder draws many images at once, one slot each, pixel by pixel. ``Decoder`` is the only part of
a backend that the engine uses. Every backend guarantees that the same seed gives the same bytes,
alone or in a batch: the arithmetic of a row never depends on the other rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from scanline.model.config import MAX_GUIDANCE, NO_LABEL, ModelConfig

NO_SLOT = -1
# A launch of at most this many slots is synchronized at once, so that its pixels are shown early.
# With more slots the device gets the next launches before the last one has finished.
SYNCHRONOUS_SLOTS = 64
Slots = Sequence[int] | NDArray[np.integer[Any]]


class BackendError(RuntimeError):
    """Raised if a backend cannot run on this machine; the message says why."""


@dataclass(frozen=True, kw_only=True)
class InputBatch:
    """Inputs of S images, one row each.

    Attributes:
        canvas: uint8 ``[S, T, C]``, the pixel values; read only where ``known`` is true.
        known: bool ``[S, T]``, the pixels that are given. They are never redrawn.
        seed: uint64 ``[S]``. With ``particle`` it determines the uniforms of the row
            (``pixel_noise`` in ``model/noise.py``); each backend generates them itself.
        particle: uint64 ``[S]``, the particle number; 0 for an image with one particle.
        temperature: float32 ``[S]``, at least 0; 0 is greedy.
        label: int32 ``[S]``, a class or -1 for none.
        top_p: float32 ``[S]`` in (0, 1]: keep the most likely values of a channel with this
            total probability.
        guidance: float32 ``[S]``, g in p(x|label)^g · p(x)^(1-g); 1 for no guidance.
        twin: int32 ``[S]``, the slot that holds the unconditional state of a guided row
            (g ≠ 1); -1 for other rows.
    """

    canvas: NDArray[np.uint8]
    known: NDArray[np.bool_]
    seed: NDArray[np.uint64]
    particle: NDArray[np.uint64]
    temperature: NDArray[np.float32]
    label: NDArray[np.int32]
    top_p: NDArray[np.float32]
    guidance: NDArray[np.float32]
    twin: NDArray[np.int32]

    @classmethod
    def empty(cls, config: ModelConfig, rows: int) -> InputBatch:
        """Return a batch with nothing known and default sampling, for the caller to fill."""
        T, C = config.pixels, config.channels
        return cls(
            canvas=np.zeros((rows, T, C), np.uint8),
            known=np.zeros((rows, T), np.bool_),
            seed=np.zeros(rows, np.uint64),
            particle=np.zeros(rows, np.uint64),
            temperature=np.ones(rows, np.float32),
            label=np.full(rows, NO_LABEL, np.int32),
            top_p=np.ones(rows, np.float32),
            guidance=np.ones(rows, np.float32),
            twin=np.full(rows, NO_SLOT, np.int32),
        )

    @property
    def prefix_lengths(self) -> NDArray[np.int32]:
        """Number of leading known pixels of each row: int32 ``[S]``."""
        unknown = ~self.known
        first, pixels = unknown.argmax(1), self.known.shape[1]
        lengths: NDArray[np.int32] = np.where(unknown.any(1), first, pixels).astype(np.int32)
        return lengths

    def select(self, rows: Slots) -> InputBatch:
        """Return the batch of these rows, in this order."""
        selected = {
            field.name: getattr(self, field.name)[np.asarray(rows)] for field in fields(self)
        }
        return InputBatch(**selected)

    def check(self, config: ModelConfig) -> None:
        """Raise ``ValueError`` if a value is out of range or the model lacks a label."""
        classes, label = len(config.classes), self.label
        if label.size and not (label.min() >= NO_LABEL and label.max() < classes):
            raise ValueError(f"labels must be from -1 to {classes - 1}")
        if not (np.isfinite(self.temperature) & (self.temperature >= 0)).all():
            raise ValueError("temperatures must be finite and at least 0")
        if not ((self.top_p > 0) & (self.top_p <= 1)).all():
            raise ValueError("top_p must be above 0 and at most 1")
        if not ((self.guidance >= 0) & (self.guidance <= MAX_GUIDANCE)).all():
            raise ValueError(f"guidance must be from 0 to {MAX_GUIDANCE:g}")
        guided = self.guidance != 1
        if (guided & (label == NO_LABEL)).any():
            raise ValueError("guidance needs a label")
        if (guided != (self.twin != NO_SLOT)).any():
            raise ValueError("guided rows need a twin slot, and other rows must not have one")


class Decoder(ABC):
    """Base class of the backends: up to ``max_slots`` images in flight, one slot each.

    The arrays below are numpy arrays on the host, with one row per slot. Methods take sequences of
    slots, in which -1 stands for no slot and is skipped. ``begin`` and ``fork`` assign twin slots;
    for the other methods they follow their image. All methods must be called from the same thread.

    Attributes:
        canvas: uint8 ``[N, T, C]``, the pixels so far.
        bits: float32 ``[N, T]``, the cost of each decided pixel under the model, at temperature 1
            and without guidance.
        positions: int32 ``[N]``, the number of decided pixels.
        precision: The format of the matrix products.
        arithmetic: The version of the arithmetic that makes a seed's bytes the same on every CPU;
            None if the bytes depend on the machine.
        slow: Whether drawing is many times slower than on a usual machine.
        memory: Host memory in bytes that the slots take once they are used.
        min_prefill: The smallest number of leading known pixels to prefill, in one pass; shorter
            prefixes are stepped over. Infinite if the decoder has no prefill. It must not depend
            on the load, because a prefill may differ from steps in the last bits.
        max_in_flight: The number of launches to keep in flight, so that the device never idles.
        likelihood_device: Where likelihoods of whole images are computed fastest.
    """

    backend: str
    precision: str = "float32"
    arithmetic: int | None = None
    slow: bool = False
    memory: int = 0
    min_prefill: float = 1
    max_in_flight: int = 1
    likelihood_device: torch.device = torch.device("cpu")

    def __init__(self, config: ModelConfig, max_slots: int) -> None:
        self.check(config, max_slots)
        self.config, self.max_slots = config, max_slots
        self.bits: NDArray[np.float32] = np.zeros((max_slots, config.pixels), np.float32)
        self.positions: NDArray[np.int32] = np.zeros(max_slots, np.int32)
        self.inputs = InputBatch.empty(config, max_slots)

    @classmethod
    def check(cls, config: ModelConfig, max_slots: int) -> None:
        """Raise ``BackendError`` if it cannot run the config, ``ValueError`` without slots."""
        if max_slots < 1:
            raise ValueError(f"max_slots must be at least 1, not {max_slots}")
        if reason := cls.unsupported(config):
            raise BackendError(f"the {cls.backend} backend cannot run this model: {reason}")

    @property
    def variant(self) -> str:
        """Everything besides the network that the bytes of a seed depend on."""
        return self.backend

    @property
    def broken(self) -> bool:
        """True if this process cannot use the device again. Waits for the device."""
        return False

    @property
    def canvas(self) -> NDArray[np.uint8]:
        """The pixels so far: uint8 ``[N, T, C]``."""
        return self.inputs.canvas

    @property
    def scheduled_positions(self) -> NDArray[np.int32]:
        """Positions after all launches have finished: int32 ``[N]``."""
        return self.positions

    @classmethod
    @abstractmethod
    def unsupported(cls, config: ModelConfig) -> str | None:
        """Return why this backend cannot run the config, or None if it can."""

    def begin(self, slots: Slots, inputs: InputBatch) -> None:
        """Reset slots to new images, one row per slot, and prefill the leading known pixels.

        If an image is prefilled (``prefill_lengths``), its leading known pixels take one parallel
        pass, and it starts at its first unknown pixel. Otherwise it starts at its first pixel, and
        the steps go over the known pixels. If a prefill is in flight like a launch, the arrays show
        it after ``synchronize``, and ``scheduled_positions`` at once.

        Raises:
            ValueError: If a slot, twins included, does not exist or is given twice, or if the
                inputs are invalid.
        """
        rows = np.asarray(slots, np.int32)
        used = rows != NO_SLOT
        inputs.check(self.config)
        inputs, rows = inputs.select(used), rows[used]
        lengths, guided = self.prefill_lengths(inputs), inputs.twin != NO_SLOT
        twins, arrays = inputs.twin[guided], self.inputs
        targets = self._valid_slots(np.concatenate([rows, twins]))
        for field in fields(InputBatch):
            values = getattr(inputs, field.name)
            getattr(arrays, field.name)[targets] = np.concatenate([values, values[guided]])
        arrays.canvas[targets] *= arrays.known[targets][..., None]
        arrays.label[twins], arrays.twin[twins], arrays.guidance[twins] = NO_LABEL, NO_SLOT, 1
        self.bits[targets] = 0
        self.positions[targets] = 0
        self._reset_state(targets, np.concatenate([lengths, lengths[guided]]))

    @abstractmethod
    def _reset_state(self, slots: NDArray[np.int32], lengths: NDArray[np.int32]) -> None:
        """Zero the state of these slots, and prefill the first ``lengths`` pixels of each.

        Their arrays are already set.
        """

    def prefill_lengths(self, inputs: InputBatch) -> NDArray[np.int32]:
        """Return the number of pixels that ``begin`` prefills of each row: int32 ``[S]``."""
        lengths = inputs.prefix_lengths
        lengths[lengths < self.min_prefill] = 0
        return lengths

    def fork(self, sources: Slots, targets: Slots, twins: Slots | None = None) -> None:
        """Copy images with their state to other slots; both continue with the same bytes.

        None of these slots may be in flight, except for a prefill.

        Args:
            sources: The slot to copy from, for each target. A source may have several targets,
                but must not be a target itself.
            targets: The slots to copy to.
            twins: The twin slot of each copy, -1 for an unguided image. None means all are -1.

        Raises:
            ValueError: If slots do not exist, are given twice or do not match.
        """
        origins, copies = np.asarray(sources, np.int32), np.asarray(targets, np.int32)
        new_twins = np.full_like(copies, NO_SLOT) if twins is None else np.asarray(twins, np.int32)
        if not origins.shape == copies.shape == new_twins.shape or (origins == NO_SLOT).any():
            raise ValueError("sources, targets and twins must have the same length")
        self._valid_slots(np.unique(origins))
        source_twins = self.inputs.twin[origins]
        guided = source_twins != NO_SLOT
        if ((new_twins != NO_SLOT) != guided).any():
            raise ValueError(
                "copies of guided images need a twin slot, and other copies must not have one"
            )
        origins = np.concatenate([origins, source_twins[guided]])
        all_copies = self._valid_slots(np.concatenate([copies, new_twins[guided]]))
        if len(all_copies) != len(origins) or np.isin(all_copies, origins).any():
            raise ValueError("targets must differ from each other and from the sources")
        for field in fields(InputBatch):
            array = getattr(self.inputs, field.name)
            array[all_copies] = array[origins]
        self.inputs.twin[copies] = new_twins
        self.bits[all_copies] = self.bits[origins]
        self.positions[all_copies] = self.positions[origins]
        self._copy_state(origins, all_copies)

    @abstractmethod
    def _copy_state(self, sources: NDArray[np.int32], targets: NDArray[np.int32]) -> None:
        """Copy the state of slots, whose arrays are already copied."""

    def reseed(self, slots: Slots, particles: Sequence[int] | NDArray[np.integer[Any]]) -> None:
        """Switch slots to the uniforms of other particles, from the next pixel on."""
        used = np.asarray(slots, np.int32) != NO_SLOT
        self.inputs.particle[self._valid_slots(slots)] = np.asarray(particles, np.uint64)[used]

    @abstractmethod
    def step(self, slots: Slots, n: int) -> None:
        """Advance each slot by up to ``n`` pixels; finished images do not change."""

    def launch(self, slots: Slots, n: int) -> None:
        """Start what ``step`` does without waiting for the device.

        The arrays show the pixels before the launch until ``synchronize`` returns. The next launch
        continues from ``scheduled_positions``. Slots may begin new images in the meantime.
        """
        self.step(slots, n)

    def synchronize(self, remaining: int = 0) -> None:  # noqa: B027
        """Wait until only the last ``remaining`` launches are in flight; update the arrays."""

    def _valid_slots(self, slots: Slots) -> NDArray[np.int32]:
        """Return the slots without -1; raise ``ValueError`` if one is unknown or given twice."""
        rows: NDArray[np.int32] = np.asarray(slots, np.int32)
        rows = rows[rows != NO_SLOT]
        in_range = not rows.size or (rows.min() >= 0 and rows.max() < self.max_slots)
        if not in_range or (len(rows) > 1 and np.bincount(rows).max() > 1):
            raise ValueError("slots must be -1 or different numbers below max_slots")
        return rows
