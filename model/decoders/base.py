"""Decoders: many images in flight, one slot each, advanced pixel by pixel.

``Decoder`` is all that the engine knows. All backends promise that the same seed gives the same
bytes, alone or among thousands: a row's arithmetic never depends on the other rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scanline.model.config import MAX_GUIDANCE, NO_LABEL, ModelConfig

NO_SLOT = -1
# Each launch of no more slots is landed at once, so that pixels are shown as they come; of more,
# some stay in flight.
SYNCHRONOUS_SLOTS = 64
Slots = Sequence[int] | NDArray[np.integer[Any]]


class BackendError(RuntimeError):
    """A backend that was asked for by name cannot run here; the message says why."""


@dataclass(frozen=True, kw_only=True)
class InputBatch:
    """What images are given, one row each.

    ``canvas: uint8 [S, T, C]`` holds the given pixels and ``known: bool [S, T]`` says which they
    are: a known pixel is never redrawn, wherever it is. ``seed: uint64 [S]`` and ``particle: uint64
    [S]`` name its uniforms (``pixel_noise`` of ``model/noise.py``), which a backend makes where it
    draws. ``temperature: float32 [S]`` ≥ 0, ``label: int32 [S]`` a class or -1.

    ``top_p: float32 [S]`` in (0, 1] keeps the likeliest values of a channel that hold this share.
    ``guidance: float32 [S]`` is g of p(x|label)^g · p(x)^(1-g), 1 for the plain model; a row of
    another g has a ``twin: int32 [S]``, a slot of its own that carries the state without the label.
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
        """Give rows with nothing known, at the model's own temperature, for a caller to fill."""
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
        """Count each row's leading known pixels: ``[S]``."""
        unknown = ~self.known
        first = unknown.argmax(1)
        whole = self.known.shape[1]
        lengths: NDArray[np.int32] = np.where(unknown.any(1), first, whole).astype(np.int32)
        return lengths

    def select(self, rows: Slots) -> InputBatch:
        """Take some of the rows, in this order."""
        taken = {field.name: getattr(self, field.name)[np.asarray(rows)] for field in fields(self)}
        return InputBatch(**taken)

    def check(self, config: ModelConfig) -> None:
        """Raise ``ValueError`` on what no network, or not this one, can draw from."""
        classes, label = len(config.classes), self.label
        if label.size and not (label.min() >= NO_LABEL and label.max() < classes):
            raise ValueError(f"labels must be -1 … {classes - 1}")
        if not (np.isfinite(self.temperature) & (self.temperature >= 0)).all():
            raise ValueError("temperatures must be 0 or more, and finite")
        if not ((self.top_p > 0) & (self.top_p <= 1)).all():
            raise ValueError("top_p must be above 0 and at most 1")
        if not ((self.guidance >= 0) & (self.guidance <= MAX_GUIDANCE)).all():
            raise ValueError(f"guidance must be 0 to {MAX_GUIDANCE:g}")
        guided = self.guidance != 1
        if (guided & (label == NO_LABEL)).any():
            raise ValueError("guidance needs a label to guide towards")
        if (guided != (self.twin != NO_SLOT)).any():
            raise ValueError("a guided row, and no other, has a twin")


class Decoder(ABC):
    """``max_slots`` images in flight, each row of every array one slot.

    Numpy arrays on the host: ``canvas: uint8 [N, T, C]`` the pixels so far, ``bits: float32
    [N, T]`` each decided pixel's cost under the model (temperature 1, unguided), ``positions: int32
    [N]`` pixels decided. Methods take slots as int32 arrays in which -1 stands for none and is
    skipped; a twin is never named, it goes with its image. They may be called from one thread only.
    """

    backend: str
    precision: str = "float32"  # what products are computed in
    memory: int = 0  # bytes of the host's that its slots come to take once they are used
    supports_prefill: bool = True  # whether images begin behind their leading known pixels
    max_in_flight: int = 1  # how many launches are to be in flight, so that a device never waits

    def __init__(self, config: ModelConfig, max_slots: int) -> None:
        self.check(config, max_slots)
        self.config, self.max_slots = config, max_slots
        self.bits: NDArray[np.float32] = np.zeros((max_slots, config.pixels), np.float32)
        self.positions: NDArray[np.int32] = np.zeros(max_slots, np.int32)
        self.inputs = InputBatch.empty(config, max_slots)

    @classmethod
    def check(cls, config: ModelConfig, max_slots: int) -> None:
        """Raise ``BackendError`` on a config that it cannot run, ``ValueError`` on no slots."""
        if max_slots < 1:
            raise ValueError(f"max_slots must be at least 1, not {max_slots}")
        if reason := cls.unsupported(config):
            raise BackendError(f"the {cls.backend} backend cannot run this model: {reason}")

    @property
    def variant(self) -> str:
        """Say all that a seed's bytes depend on beside the network."""
        return self.backend

    @property
    def broken(self) -> bool:
        """Whether nothing can be drawn any more in this process; waits for the device to tell."""
        return False

    @property
    def canvas(self) -> NDArray[np.uint8]:
        """The pixels so far: uint8 ``[N, T, C]``."""
        return self.inputs.canvas

    @property
    def scheduled_positions(self) -> NDArray[np.int32]:
        """Where images are once all that was launched has landed: int32 ``[N]``."""
        return self.positions

    @classmethod
    @abstractmethod
    def unsupported(cls, config: ModelConfig) -> str | None:
        """Say which option of the config this backend cannot run; None where it runs them all."""

    def begin(self, slots: Slots, inputs: InputBatch) -> None:
        """Put images before their first pixel, one row a slot, and prefill their leading known
        ones.

        A backend that ``supports_prefill`` begins an image at its first unknown pixel; those
        before it take
        one parallel pass. On a device an image begins at its first pixel, and steps pass over what
        is known. Raises ``ValueError`` on slots that are not there or come twice, twins among them,
        and on inputs that make no sense.
        """
        rows = np.asarray(slots, np.int32)
        there = rows != NO_SLOT
        inputs.check(self.config)
        inputs, rows = inputs.select(there), rows[there]
        lengths, guided = inputs.prefix_lengths, inputs.twin != NO_SLOT
        mine = self.inputs
        everyone = self._valid_slots(np.concatenate([rows, inputs.twin[guided]]))
        for field in fields(InputBatch):
            values = getattr(inputs, field.name)
            getattr(mine, field.name)[everyone] = np.concatenate([values, values[guided]])
        mine.canvas[everyone] *= mine.known[everyone][..., None]
        twins = inputs.twin[guided]
        mine.label[twins], mine.twin[twins], mine.guidance[twins] = NO_LABEL, NO_SLOT, 1
        self.bits[everyone] = 0
        self.positions[everyone] = 0
        self._reset_state(everyone, np.concatenate([lengths, lengths[guided]]))

    @abstractmethod
    def _reset_state(self, slots: NDArray[np.int32], lengths: NDArray[np.int32]) -> None:
        """Zero the state of these slots, whose inputs are there.

        Where the backend ``supports_prefill``, prefill their first pixels, so many.
        """

    def fork(self, sources: Slots, targets: Slots, twins: Slots | None = None) -> None:
        """Copy images, each with all that it is, to other slots: both go on with the same bytes.

        A source may have several targets, none of them a source. ``twins`` are the slots for the
        copies' twins, -1 where an image has none, as all do by default. Nothing of these slots may
        be in flight. Raises ``ValueError`` on slots that are not there, come twice or do not match.
        """
        origins, copies = np.asarray(sources, np.int32), np.asarray(targets, np.int32)
        paired = np.full_like(copies, NO_SLOT) if twins is None else np.asarray(twins, np.int32)
        if not origins.shape == copies.shape == paired.shape or (origins == NO_SLOT).any():
            raise ValueError("each target takes one source, and as many twins as targets")
        self._valid_slots(np.unique(origins))
        behind = self.inputs.twin[origins]
        guided = behind != NO_SLOT
        if ((paired != NO_SLOT) != guided).any():
            raise ValueError("the copy of a guided image, and of no other, needs a twin")
        origins = np.concatenate([origins, behind[guided]])
        all_copies = self._valid_slots(np.concatenate([copies, paired[guided]]))
        if len(all_copies) != len(origins) or np.isin(all_copies, origins).any():
            raise ValueError("each target takes one source, and is none itself")
        for field in fields(InputBatch):
            array = getattr(self.inputs, field.name)
            array[all_copies] = array[origins]
        self.inputs.twin[copies] = paired
        self.bits[all_copies] = self.bits[origins]
        self.positions[all_copies] = self.positions[origins]
        self._copy_state(origins, all_copies)

    @abstractmethod
    def _copy_state(self, sources: NDArray[np.int32], targets: NDArray[np.int32]) -> None:
        """Copy the state of slots, whose arrays are copied."""

    def reseed(self, slots: Slots, particles: Sequence[int] | NDArray[np.integer[Any]]) -> None:
        """Give slots the uniforms of other particles of their images, for the pixels to come."""
        there = np.asarray(slots, np.int32) != NO_SLOT
        self.inputs.particle[self._valid_slots(slots)] = np.asarray(particles, np.uint64)[there]

    @abstractmethod
    def step(self, slots: Slots, n: int) -> None:
        """Advance each slot by up to ``n`` pixels; one that reaches T stays there."""

    def launch(self, slots: Slots, n: int) -> None:
        """Begin what ``step`` does, on a device that goes on by itself; ``synchronize`` ends it.

        Until then the slots' arrays show the pixels before; the next launch goes on where this one
        will end, which ``scheduled_positions`` tells. Slots may begin with other images meanwhile.
        """
        self.step(slots, n)

    def synchronize(self, remaining: int = 0) -> None:  # noqa: B027
        """Wait until only the last ``remaining`` launches are in flight: the arrays show the
        others."""

    def _valid_slots(self, slots: Slots) -> NDArray[np.int32]:
        """Leave out -1; raises ``ValueError`` on a slot that is not there, or named twice."""
        rows: NDArray[np.int32] = np.asarray(slots, np.int32)
        rows = rows[rows != NO_SLOT]
        there = not rows.size or (rows.min() >= 0 and rows.max() < self.max_slots)
        if not there or (len(rows) > 1 and np.bincount(rows).max() > 1):
            raise ValueError("slots must be -1 or different numbers below max_slots")
        return rows


# What every backend takes any value of that a config may have.
_SIZE_FIELDS = {
    "height", "width", "channels", "first_value", "classes", "n_layers", "n_heads", "d_model",
    "d_ff",
}  # fmt: skip


# What the compiled backends know of each option.
COMPILED_OPTIONS = {
    "input": ("previous", "neighbourhood"),
    "encoding": ("table", "linear", "table+linear"),
    "order": ("subpixel", "pixel"),
    "head": ("logistic_mixture", "categorical"),
    "attention": ("linear",),
    "feature_map": ("elu",),
    "short_conv": ("none", "2x3"),
    "norm": ("pre", "post"),
    "activation": ("gelu", "relu"),
    "positions": ("learned", "sinusoidal"),
    "start": ("learned", "given"),
}


def unsupported_option(config: ModelConfig) -> str | None:
    """Name the first option that the compiled backends do not know; None if they know them all.

    An option that is not among ``COMPILED_OPTIONS`` may have its default alone: so one that they
    were never told of is refused, not ignored.
    """
    for field in fields(config):
        value = getattr(config, field.name)
        values = COMPILED_OPTIONS.get(field.name, (field.default,))
        if field.name not in _SIZE_FIELDS and value not in values:
            return f"{field.name} {value!r} (it knows {', '.join(map(str, values))})"
    return None
