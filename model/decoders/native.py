"""The ``native`` backend: the decoder's contract over the C++ of ``kernels/native/decoder.cpp``."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scanline.kernels.native import abi as native
from scanline.kernels.native.build import NativeBuildError
from scanline.kernels.native.cpu import usable_cores
from scanline.model.config import ModelConfig
from scanline.model.decoders.base import (
    BackendError,
    Decoder,
    Slots,
    unsupported_option,
)
from scanline.model.decoders.memory import InsufficientResourcesError, check_slot_memory
from scanline.model.inputs import sinusoidal_code
from scanline.model.network import LinearTransformer


def _numpy(tensor: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = tensor.detach().to("cpu", torch.float32).contiguous().numpy()
    return array


class NativeDecoder(Decoder):
    """C++ on the CPU: whole pixels of all slots in one call.

    ``precision`` is what products are computed in: by default ``int16``, whole numbers that are
    more exact than ``bf16`` and on Zen 4 about as fast, and ``bf16`` on Arm. ``int8`` is faster
    than both, and some models are worse for it. All else is float32, and so are states.
    Where intensities enter by a linear map, the first feed-forward network's input and a mixture's
    parameters are a step finer: float32 beside bf16, int16 beside int8.
    ``threads`` is how many cores to use, all that this process may by default, and ``isa`` one of
    ``ISAS`` in ``kernels/native/cpu.py``, the CPU's best by default. ``speculate`` computes pixels
    ahead on guesses, where images are few, and keeps what was guessed right. ``team`` is how many
    threads share the work on few images, by default as many as are measured to be quickest, up to
    what the network's size is worth. The same seed gives the same bytes for every ``threads`` and
    ``team``, guessed or not. Raises ``BackendError`` where the code cannot be built or run, of
    which ``InsufficientMemoryError`` and ``InsufficientResourcesError`` say that memory or threads
    are short, and ``ValueError``
    on an unknown ``precision`` or ``isa``, or no thread.
    """

    backend = "native"

    def __init__(
        self,
        model: LinearTransformer,
        max_slots: int,
        threads: int | None = None,
        *,
        precision: str | None = None,
        isa: str | None = None,
        speculate: bool = True,
        team: int | None = None,
    ) -> None:
        self.check(model.config, max_slots)
        if threads is not None and threads < 1:
            raise ValueError(f"threads must be at least 1, not {threads}")
        if team is not None and team < 1:
            raise ValueError(f"team must be at least 1, not {team}")
        chosen = None if precision is None else native.precision_of(precision)
        self.threads = threads or usable_cores()
        try:
            library = native.load_library(isa)
        except NativeBuildError as error:
            raise BackendError(f"the native backend cannot run: {error}") from error
        # NEON has no product of pairs of int16.
        arm = native.isa_of(library).startswith("neon")
        own: native.Precision = "bf16" if arm else "int16"
        self.precision: native.Precision = chosen or own
        c = model.config
        sizes = {
            name: getattr(c, name)
            for name in (
                "height", "width", "channels", "step_channels", "first_value", "n_layers",
                "n_heads", "d_model", "d_ff", "head_outputs", "step_draws",
            )
        } | {
            "neighbourhood": c.input == "neighbourhood", "sinusoidal": c.positions == "sinusoidal",
            "categorical": c.head == "categorical", "pre_norm": c.norm == "pre",
            "gelu": c.activation == "gelu", "start_given": c.start == "given",
            "classes": len(c.classes), "short_conv": c.short_conv != "none", "max_slots": max_slots,
            "precision": native.PRECISIONS.index(self.precision), "threads": self.threads,
            "team": team or 0, "speculate": speculate,
        }  # fmt: skip
        # Before the arrays are made for nothing.
        self.memory = check_slot_memory(c, max_slots, 4 * native.slot_state(library, sizes))
        super().__init__(c, max_slots)
        arrays: dict[str, NDArray[np.generic]] = {
            "bits": self.bits, "positions": self.positions,
            **{field.name: getattr(self.inputs, field.name) for field in fields(self.inputs)},
        }  # fmt: skip
        try:
            self._native = native.NativeNetwork(
                library, sizes, _weights(model), _layers(model), arrays
            )
        except NativeBuildError as error:  # of memory or threads
            raise InsufficientResourcesError(f"the native backend cannot run: {error}") from error

    @classmethod
    def unsupported(cls, config: ModelConfig) -> str | None:
        """Name the first option that the C++ does not know."""
        return unsupported_option(config)

    @property
    def isa(self) -> str:
        """The instructions that the code was built for."""
        return self._native.isa

    @property
    def variant(self) -> str:
        return f"{self.backend} {self.isa} {self.precision}"

    @property
    def kv(self) -> NDArray[np.float32]:
        """Every slot's sums of eq. 18, a view: ``[N, L, H, K, V]``."""
        K = self.config.head_size
        return self._native.sums[..., :K, :K]

    @property
    def z(self) -> NDArray[np.float32]:
        """Every slot's sums of eq. 19, a view: ``[N, L, H, K]``."""
        K = self.config.head_size
        return self._native.sums[..., K, :K]

    def trace(self) -> NDArray[np.float32]:
        """From now on keep every step's head parameters, in ``[N, steps, head_outputs]``."""
        c = self.config
        parameters = np.full((self.max_slots, c.steps, c.head_outputs), np.nan, np.float32)
        self._native.trace(parameters)
        return parameters

    @property
    def states(self) -> NDArray[np.float32]:
        """Every slot's whole state, a view: ``[N, floats]``."""
        return self._native.states

    def _reset_state(self, slots: NDArray[np.int32], lengths: NDArray[np.int32]) -> None:
        self._native.begin(np.ascontiguousarray(slots), np.ascontiguousarray(lengths, np.int32))

    def _copy_state(self, sources: NDArray[np.int32], targets: NDArray[np.int32]) -> None:
        self._native.copy(np.ascontiguousarray(sources), np.ascontiguousarray(targets))

    def step(self, slots: Slots, n: int) -> None:
        # No more than there are, for C++ counts in 32 bits.
        self._native.step(np.ascontiguousarray(slots, np.int32), min(n, self.config.pixels))


def _weights(model: LinearTransformer) -> dict[str, NDArray[np.float32] | None]:
    tensors = dict(model.named_parameters())
    names = {
        "value_embedding": "input.value_embedding.weight", "start": "input.start",
        "tables": "input.tables", "linear_weight": "input.linear.weight",
        "linear_bias": "input.linear.bias", "row": "positions.row", "column": "positions.column",
        "channel": "positions.channel", "label": "label_embedding.weight",
        "norm_weight": "norm.weight", "norm_bias": "norm.bias",
        "head_weight": "head.predictor.weight", "head_bias": "head.predictor.bias",
        "head_tables": "head.tables",
    }  # fmt: skip
    weights: dict[str, NDArray[np.float32] | None] = {
        name: _numpy(tensors[theirs]) if theirs in tensors else None
        for name, theirs in names.items()
    }
    c = model.config
    weights["code"] = None
    if c.positions == "sinusoidal":
        behind = int(c.input == "previous")  # the code is that of the value embedded
        weights["code"] = _numpy(sinusoidal_code(torch.arange(c.steps) - behind, c.d_model // 2))
    return weights


def _layers(model: LinearTransformer) -> list[dict[str, NDArray[np.float32]]]:
    return [
        {
            name.removeprefix("attention.").replace(".", "_"): _numpy(tensor)
            for name, tensor in block.named_parameters()
        }
        for block in model.blocks
    ]
