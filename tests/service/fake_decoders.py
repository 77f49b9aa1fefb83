"""Fake decoders, whose pixels are a simple function of seed, label and earlier pixels."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanline.model.config import ModelConfig
from scanline.model.decoders.base import Decoder, InputBatch, Slots
from scanline.model.noise import image_noise, image_seed
from scanline.service.engine.generation import GenerationSpec

cached_noise = functools.lru_cache(4096)(image_noise)


class FakeDecoder(Decoder):
    """Decoder whose pixels are a simple function of uniforms, label and all earlier pixels.

    The hooks ``before_step`` and ``before_load`` are called with the slots, and may raise or
    block.
    """

    backend = "fake"
    broken = False

    def __init__(self, config: ModelConfig, max_slots: int) -> None:
        super().__init__(config, max_slots)
        self.state = np.full(max_slots, -(10**6), np.int64)  # wrong unless reset
        self.before_step: Callable[[list[int]], None] = lambda slots: None
        self.before_load: Callable[[list[int]], None] = lambda slots: None
        self.steps: list[tuple[list[int], int]] = []

    @classmethod
    def unsupported(cls, config: ModelConfig) -> str | None:
        return None

    def begin(self, slots: Slots, inputs: InputBatch) -> None:
        self.before_load([int(slot) for slot in np.asarray(slots)])
        super().begin(slots, inputs)

    def _reset_state(self, slots: NDArray[np.int32], lengths: NDArray[np.int32]) -> None:
        self.state[slots] = 0
        for slot, length in zip(slots.tolist(), lengths.tolist(), strict=True):
            for _ in range(length):
                self._pixel(slot)

    def _copy_state(self, sources: NDArray[np.int32], targets: NDArray[np.int32]) -> None:
        self.state[targets] = self.state[sources]

    def step(self, slots: Slots, n: int) -> None:
        listed = [int(slot) for slot in slots]
        self.steps.append((listed, n))
        self.before_step(listed)
        for slot in listed:
            for _ in range(min(n, self.config.pixels - int(self.positions[slot]))):
                self._pixel(slot)

    def _noise(self, slot: int) -> NDArray[np.float32]:
        seed, particle = int(self.inputs.seed[slot]), int(self.inputs.particle[slot])
        return cached_noise(seed, self.config.pixels, self.config.draws, particle)

    def _pixel(self, slot: int) -> None:
        p, given = int(self.positions[slot]), self.inputs
        state, values = fake_pixel(
            int(self.state[slot]), self._noise(slot)[p], int(given.label[slot]),
            float(given.temperature[slot]), self.config.channels,
        )  # fmt: skip
        if given.known[slot, p]:
            values = [int(v) for v in self.canvas[slot, p]]
        self.canvas[slot, p] = values
        self.state[slot] = (state * 31 + sum(values) + 1) % 65_521
        self.bits[slot, p] = 1.0
        self.positions[slot] = p + 1


class LateDecoder(FakeDecoder):
    """Fake decoder on a fake device: a launch's pixels are visible once it is synchronized."""

    min_prefill = math.inf
    max_in_flight = 2

    def __init__(self, config: ModelConfig, max_slots: int) -> None:
        super().__init__(config, max_slots)
        self.device = FakeDecoder(config, max_slots)
        self.device.min_prefill = self.min_prefill
        self.launched: list[tuple[list[int], list[SlotContents]]] = []  # the slots in flight

    @property
    def scheduled_positions(self) -> NDArray[np.int32]:
        return self.device.positions

    def _reset_state(self, slots: NDArray[np.int32], lengths: NDArray[np.int32]) -> None:
        self.device.begin(slots, self.inputs.select(slots))
        begun, prefilled = set(slots.tolist()), slots[lengths > 0].tolist()
        self.launched = [
            (listed, [shown for shown in flight if shown.slot not in begun])
            for listed, flight in self.launched
        ]
        for slot in begun.difference(prefilled):
            self._show(SlotContents.of(self.device, slot))
        if prefilled:
            contents = [SlotContents.of(self.device, slot) for slot in prefilled]
            self.launched.append((prefilled, contents))

    def step(self, slots: Slots, n: int) -> None:
        self.launch(slots, n)
        self.synchronize()

    def launch(self, slots: Slots, n: int) -> None:
        listed = [int(slot) for slot in slots]
        self.steps.append((listed, n))
        self.device.step(slots, n)
        self.launched.append((listed, [SlotContents.of(self.device, slot) for slot in listed]))

    def synchronize(self, remaining: int = 0) -> None:
        while len(self.launched) > remaining:
            listed, flight = self.launched.pop(0)
            self.before_step(listed)
            for shown in flight:
                self._show(shown)

    def _show(self, shown: SlotContents) -> None:
        slot = shown.slot
        self.canvas[slot], self.bits[slot] = shown.canvas, shown.bits
        self.positions[slot] = shown.position


class LatePrefillDecoder(LateDecoder):
    """Late decoder that prefills from three known pixels on; a prefill is in flight like a step."""

    min_prefill = 3


class SlotContents(NamedTuple):
    """Visible contents of a slot."""

    slot: int
    canvas: NDArray[np.uint8]
    bits: NDArray[np.float32]
    position: int

    @classmethod
    def of(cls, decoder: Decoder, slot: int) -> SlotContents:
        """Copy a slot's present contents."""
        position = int(decoder.positions[slot])
        return cls(slot, decoder.canvas[slot].copy(), decoder.bits[slot].copy(), position)


def fake_pixel(
    state: int, noise: NDArray[np.float32], label: int, temperature: float, channels: int
) -> tuple[int, list[int]]:
    """Return the fake decoder's next state and pixel values."""
    drawn = int(float(noise[0]) * 251 * (temperature > 0))
    return state, [(drawn + state + 17 * label + 5 * c) % 256 for c in range(channels)]


def fake_image(config: ModelConfig, spec: GenerationSpec, index: int) -> NDArray[np.uint8]:
    """Compute the pixels that ``FakeDecoder`` must draw for an image: uint8 ``[T, C]``."""
    noise = image_noise(image_seed(spec.seed, index), config.pixels, config.draws)
    pixels = np.zeros((config.pixels, config.channels), np.uint8)
    state = 0
    for p in range(config.pixels):
        _, values = fake_pixel(
            state, noise[p], spec.sampling.label, spec.sampling.temperature, config.channels
        )
        if spec.known is not None and spec.known[p]:
            assert spec.canvas is not None
            values = [int(v) for v in spec.canvas[p]]
        pixels[p] = values
        state = (state * 31 + sum(values) + 1) % 65_521
    return pixels
