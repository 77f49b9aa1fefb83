"""The ``native`` backend, an adapter to the C++ decoder in ``kernels/native/decoder.cpp``."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from scanline.kernels.native import abi as native
from scanline.kernels.native.build import NativeBuildError
from scanline.kernels.native.cpu import usable_cores
from scanline.model.config import ModelConfig
from scanline.model.decoders.base import BackendError, Decoder, Slots
from scanline.model.decoders.memory import InsufficientResourcesError, check_slot_memory
from scanline.model.decoders.options import COMPILED_OPTIONS, unsupported_option
from scanline.model.network import LinearTransformer

# Version of the arithmetic of every precision except bf16. A change that may change a drawn byte or
# a bit raises it.
ARITHMETIC = 1
# Values of each option that this backend supports.
OPTIONS = COMPILED_OPTIONS


def _numpy(tensor: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = tensor.detach().to("cpu", torch.float32).contiguous().numpy()
    return array


class NativeDecoder(Decoder):
    """Decoder in C++ on the CPU, which draws whole pixels of all slots in one call.

    The same seed gives the same bytes for every ``threads`` and ``team``, with and without
    ``speculate``.

    Args:
        model: The network to draw with.
        max_slots: The number of images in flight.
        threads: The number of cores to use; by default all that this process may use.
        precision: The format of the matrix products, by default ``int16``.
            ``int16`` is more exact than ``bf16`` and on Zen 4 about as fast; ``int8`` is faster
            than both, but degrades some models; ``int10`` rounds only the weights, to 10 bits, so
            that one image or a few read fewer bytes. States and everything else are float32. If
            intensities enter by a linear map, the input of the first feed-forward network and the
            parameters of a mixture are more precise: float32 with ``bf16``, int16 with ``int8``
            and ``int10``.
        isa: One of ``ISAS`` in ``kernels/native/cpu.py``, by default the CPU's best.
        speculate: Whether to compute pixels ahead from predicted values if there are few images.
            Pixels with a correct prediction are kept.
        team: The number of threads that share the work on few images. By default it is measured,
            up to a limit set by the size of the network.

    Raises:
        BackendError: If the code cannot be built or run. Its subclasses
            ``InsufficientMemoryError`` and ``InsufficientResourcesError`` mean that memory or
            threads do not suffice.
        ValueError: If ``precision``, ``isa`` or SCANLINE_ISA is unknown, or ``threads`` or
            ``team`` is below 1.
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
        self.precision: native.Precision = chosen or "int16"
        self.arithmetic = None if self.precision == "bf16" else ARITHMETIC
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
        # Check before allocating the arrays.
        self.memory = check_slot_memory(c, max_slots, 4 * native.slot_state(library, sizes))
        super().__init__(c, max_slots)
        arrays: dict[str, NDArray[np.generic]] = {
            "bits": self.bits, "positions": self.positions,
            **{field.name: getattr(self.inputs, field.name) for field in fields(self.inputs)},
        }  # fmt: skip
        try:
            self._native = native.DecoderHandle(
                library, sizes, _weights(model), _layers(model), arrays
            )
        except NativeBuildError as error:  # memory or threads
            raise InsufficientResourcesError(f"the native backend cannot run: {error}") from error

    @classmethod
    def unsupported(cls, config: ModelConfig) -> str | None:
        """Return the first option that the C++ does not support, or None."""
        return unsupported_option(config, OPTIONS)

    @property
    def isa(self) -> str:
        """The instruction set that the code was built for."""
        return self._native.isa

    @property
    def variant(self) -> str:
        arithmetic = self.isa if self.arithmetic is None else f"arithmetic-{self.arithmetic}"
        return f"{self.backend} {arithmetic} {self.precision}"

    @property
    def bytes_moved(self) -> int:
        """Bytes of weights and attention sums that all passes so far have read and written."""
        return self._native.pass_counts.bytes

    def trace(self) -> NDArray[np.float32]:
        """Record the head's parameters of every later step, in ``[N, steps, head_outputs]``."""
        c = self.config
        parameters = np.full((self.max_slots, c.steps, c.head_outputs), np.nan, np.float32)
        self._native.trace(parameters)
        return parameters

    @property
    def states(self) -> NDArray[np.float32]:
        """View of every slot's whole state: ``[N, floats]``."""
        return self._native.states

    def _reset_state(self, slots: NDArray[np.int32], lengths: NDArray[np.int32]) -> None:
        self._native.begin(np.ascontiguousarray(slots), np.ascontiguousarray(lengths, np.int32))

    def _copy_state(self, sources: NDArray[np.int32], targets: NDArray[np.int32]) -> None:
        self._native.copy(np.ascontiguousarray(sources), np.ascontiguousarray(targets))

    def step(self, slots: Slots, n: int) -> None:
        # Capped, because the C++ takes n as a 32-bit integer.
        self._native.step(np.ascontiguousarray(slots, np.int32), min(n, self.config.pixels))


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a module by their names."""
    return dict(module.named_parameters()) | dict(module.named_buffers())


def _weights(model: LinearTransformer) -> dict[str, NDArray[np.float32] | None]:
    tensors = _tensors(model)
    names = {
        "value_embedding": "input.value_embedding.weight", "start": "input.start",
        "tables": "input.tables", "linear_weight": "input.linear.weight",
        "linear_bias": "input.linear.bias", "code": "input.code", "row": "positions.row",
        "column": "positions.column", "label": "label_embedding.weight",
        "norm_weight": "norm.weight", "norm_bias": "norm.bias",
        "head_weight": "head.predictor.weight", "head_bias": "head.predictor.bias",
    }  # fmt: skip
    return {
        name: _numpy(tensors[tensor]) if tensor in tensors else None
        for name, tensor in names.items()
    }


def _layers(model: LinearTransformer) -> list[dict[str, NDArray[np.float32]]]:
    return [
        {
            name.removeprefix("attention.").replace(".", "_"): _numpy(tensor)
            for name, tensor in _tensors(block).items()
        }
        for block in model.blocks
    ]
