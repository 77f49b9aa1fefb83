"""The ``reference`` backend in plain torch, which defines the results of the others."""

from __future__ import annotations

import logging
import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scanline.model.config import ModelConfig
from scanline.model.decoders.base import NO_SLOT, Decoder, Slots
from scanline.model.decoders.memory import check_slot_memory
from scanline.model.layers.base import State
from scanline.model.network import LinearTransformer
from scanline.model.noise import pixel_noise

log = logging.getLogger("scanline.decoder")


class ReferenceDecoder(Decoder):
    """Decoder in plain torch, in float32 or float64, one row at a time.

    It is slow, but obviously independent of the batch. A network without a state runs all earlier
    steps again in each step, which is slower still; known pixels take steps too. Its bits are exact
    for the images drawn in this way, but may differ from those of ``LinearTransformer.bits``, in
    which LSH attention also hashes later positions.

    Raises ``InsufficientMemoryError`` if the slots do not fit into memory.
    """

    backend = "reference"

    def __init__(
        self, model: LinearTransformer, max_slots: int, dtype: torch.dtype = torch.float32
    ) -> None:
        self.check(model.config, max_slots)
        self.model = LinearTransformer(model.config).to(dtype).eval()
        self.model.load_state_dict(model.state_dict())
        states = self.model.initial_state(1)
        each = sum(tensor.nbytes for state in states for tensor in state.values())
        # Check before allocating the arrays.
        self.memory = check_slot_memory(model.config, max_slots, each)
        super().__init__(model.config, max_slots)
        if not model.config.has_state:
            self.min_prefill = math.inf
            log.warning(
                "drawing is slow: attention %r has no state, so each pixel computes all earlier "
                "pixels again",
                model.config.attention,
            )
        self.states = self.model.initial_state(max_slots)

    @classmethod
    def unsupported(cls, config: ModelConfig) -> str | None:
        """Return None, because the network itself runs every config."""
        return None

    @torch.inference_mode()
    def _reset_state(self, slots: NDArray[np.int32], lengths: NDArray[np.int32]) -> None:
        initial = self.model.initial_state(1)
        for slot, length in zip(slots.tolist(), lengths.tolist(), strict=True):
            self._set_state(slot, initial)
            if length:
                canvas = torch.from_numpy(self.canvas[slot : slot + 1])
                label = self._label(slot)
                states, bits = self.model.prefill(canvas, torch.tensor([length]), label)
                self._set_state(slot, states)
                self.bits[slot] = bits[0].numpy()
                self.positions[slot] = length

    @torch.inference_mode()
    def step(self, slots: Slots, n: int) -> None:
        for slot in self._valid_slots(slots).tolist():
            for _ in range(min(n, self.config.pixels - int(self.positions[slot]))):
                self._step_pixel(slot)

    def _copy_state(self, sources: NDArray[np.int32], targets: NDArray[np.int32]) -> None:
        for state in self.states:
            for tensor in state.values():
                tensor[targets] = tensor[sources]

    def _set_state(self, slot: int, states: list[State]) -> None:
        for own, new in zip(self.states, states, strict=True):
            for name, tensor in new.items():
                own[name][slot] = tensor[0]

    def _label(self, slot: int) -> Tensor:
        return torch.from_numpy(self.inputs.label[slot : slot + 1]).long()

    def _run(self, slot: int, step: int) -> Tensor:
        """Run one step of a slot; return the head's parameters ``[1, P]``."""
        canvas = torch.from_numpy(self.canvas[slot : slot + 1])
        if not self.config.has_state:
            return self.model.recompute_step(canvas, step, self._label(slot))
        states = [  # views, so that the step updates the slot's rows
            {name: tensor[slot : slot + 1] for name, tensor in state.items()}
            for state in self.states
        ]
        return self.model.step(canvas, torch.tensor([step]), states, self._label(slot))

    def _step_pixel(self, slot: int) -> None:
        config, pixel, inputs = self.config, int(self.positions[slot]), self.inputs
        values = torch.from_numpy(self.canvas[slot, pixel])
        seed, particle = int(inputs.seed[slot]), int(inputs.particle[slot])
        uniforms = pixel_noise(seed, pixel, config.draws, particle)
        noise = torch.from_numpy(uniforms).view(config.steps_per_pixel, -1)
        known, twin = bool(inputs.known[slot, pixel]), int(inputs.twin[slot])
        temperature, top_p, guidance = (
            torch.from_numpy(array[slot : slot + 1])
            for array in (inputs.temperature, inputs.top_p, inputs.guidance)
        )
        bits = 0.0
        for part in range(config.steps_per_pixel):
            channels = slice(part * config.step_channels, (part + 1) * config.step_channels)
            step = pixel * config.steps_per_pixel + part
            if step < self.model.first_step:
                if not known:
                    values[channels] = config.first_value
            else:
                parameters = self._run(slot, step)
                unconditional = None if twin == NO_SLOT else self._run(twin, step)
                if not known:
                    values[channels] = self.model.head.sample(
                        parameters,
                        noise[part : part + 1],
                        temperature,
                        top_p,
                        guidance,
                        unconditional,
                    )[0]
                bits += float(self.model.head.bits(parameters, values[None, channels]))
            if twin != NO_SLOT:
                self.canvas[twin, pixel] = values.numpy()
        for one in [slot] if twin == NO_SLOT else [slot, twin]:
            self.bits[one, pixel] = bits
            self.positions[one] = pixel + 1
