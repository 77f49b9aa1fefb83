"""The ``reference`` backend: plain torch, and the definition of every other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scanline.model.config import NO_LABEL
from scanline.model.decoders.contract import Decoder
from scanline.model.network import LinearTransformer, State


class ReferenceDecoder(Decoder):
    """Plain torch in float32 or float64, one row after another: slow, and plainly invariant."""

    backend = "reference"

    def __init__(
        self, model: LinearTransformer, max_slots: int, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(model.config, max_slots)
        self.model = LinearTransformer(model.config).to(dtype).eval()
        self.model.load_state_dict(model.state_dict())
        self.state = State.zeros(model.config, max_slots, dtype)

    def reset(self, slots: Sequence[int] | NDArray[np.int32]) -> None:
        for slot in self._chosen(slots):
            self.state.kv[:, slot] = 0
            self.state.z[:, slot] = 0
            self.positions[slot] = 0

    @torch.inference_mode()
    def prefill(
        self, slots: Sequence[int] | NDArray[np.int32], lengths: Sequence[int] | NDArray[np.int32]
    ) -> None:
        self._check_prefill(slots, lengths)
        for slot, length in zip(slots, lengths, strict=True):
            if slot < 0 or length == 0:
                continue
            canvas = torch.from_numpy(self.canvas[slot : slot + 1])
            state, bits = self.model.prefill(canvas, torch.tensor([length]), self._label(slot))
            self.state.kv[:, slot] = state.kv[:, 0]
            self.state.z[:, slot] = state.z[:, 0]
            self.bits[slot] = bits[0].numpy()
            self.positions[slot] = length

    @torch.inference_mode()
    def step(self, slots: Sequence[int] | NDArray[np.int32], n: int) -> None:
        for slot in self._chosen(slots):
            for _ in range(min(n, self.config.pixels - int(self.positions[slot]))):
                self._step_pixel(slot)

    def _label(self, slot: int | np.int32) -> Tensor | None:
        if not self.config.classes:
            return None
        label = int(self.label[slot])
        return torch.tensor([len(self.config.classes) if label == NO_LABEL else label])

    def _step_pixel(self, slot: int | np.int32) -> None:
        config, pixel = self.config, int(self.positions[slot])
        values = torch.from_numpy(self.canvas[slot, pixel])
        noise = torch.from_numpy(self.noise[slot, pixel]).view(config.steps_per_pixel, -1)
        known = bool(self.known[slot, pixel])
        bits = 0.0
        for part in range(config.steps_per_pixel):
            mine = slice(part * config.step_channels, (part + 1) * config.step_channels)
            step = pixel * config.steps_per_pixel + part
            if step == 0 and config.start == "given":
                if not known:
                    values[mine] = config.first_value
                continue
            canvas = torch.from_numpy(self.canvas[slot : slot + 1])
            state = State(self.state.kv[:, slot : slot + 1], self.state.z[:, slot : slot + 1])
            parameters, after = self.model.step(
                canvas, torch.tensor([step]), state, self._label(slot)
            )
            state.kv.copy_(after.kv)
            state.z.copy_(after.z)
            if not known:
                temperature = torch.from_numpy(self.temperature[slot : slot + 1])
                values[mine] = self.model.head.sample(
                    parameters, noise[part : part + 1], temperature
                )[0]
            bits += float(self.model.head.bits(parameters, values[None, mine]))
        self.bits[slot, pixel] = bits
        self.positions[slot] = pixel + 1
